"""What `cpudist bench jobs` trains, and on what: a new GPT-2 on the source code of Python's own standard library.

Written once for all contenders, so that all train the same model on the same tokens.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

_LEARNT_FROM = 2_000_000  # characters that make a tokenizer of 20,000 words, in two seconds
_CHARACTERS_PER_TOKEN = 16  # more than there are: of what is left over nothing is trained on
_UNKNOWN, _END = "<unk>", "<eos>"

# As large as the BERT of the other benchmarks: 24.2 million parameters.
_VOCABULARY, _WIDTH, _LAYERS, _HEADS = 30522, 384, 7, 12


def write(folder: Path, samples: int, length: int) -> str:
    """Write configuration, tokenizer and text.txt, for `samples` of `length` tokens; returns the model in words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, PreTrainedTokenizerFast

    text = _source_code()
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        [text],
        trainers.BpeTrainer(
            vocab_size=_VOCABULARY, special_tokens=[_UNKNOWN, _END], initial_alphabet=alphabet, show_progress=False
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, unk_token=_UNKNOWN, eos_token=_END, pad_token=_END, model_max_length=length
    )
    tokenizer.save_pretrained(folder)
    GPT2Config(
        vocab_size=_VOCABULARY,
        n_embd=_WIDTH,
        n_layer=_LAYERS,
        n_head=_HEADS,
        n_positions=length,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    ).save_pretrained(folder)
    (folder / "text.txt").write_text(text[: samples * length * _CHARACTERS_PER_TOKEN], encoding="utf-8")
    parameters = _WIDTH * (_VOCABULARY + length + 12 * _WIDTH * _LAYERS)
    return f"GPT-2 with {parameters / 1e6:.1f} million parameters"


def _source_code() -> str:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)[:_LEARNT_FROM]
