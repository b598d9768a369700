"""Leave out the columns of a batch in which every row is padding, for models whose loss this does not change.

    batch = padding.trimmed(batch, model)

Tokens do not attend to padding, and labels of -100 have no part in a loss. So the loss and its gradients stay the same
up to rounding (tests/optimization/test_padding.py tests the models of `HEADS`). The loss of question answering, a
softmax over all columns, would change.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from cpudist.errors import UserError

_COLUMNS = 32  # A multiple of this number of columns is kept, because products and attention compute in tiles.
NO_TARGET = -100
_MASK = "attention_mask"
REFUSED = "{}: {}; leave it out, or pad each batch to its longest row only"
_TENSORS = {"input_ids", _MASK, "token_type_ids", "position_ids", "labels"}

ENCODERS = {  # Model types of transformers; `HEADS` adds the endings of the class names that are supported.
    *("albert", "bert", "camembert", "deberta-v2", "distilbert", "electra", "modernbert", "mpnet", "roberta"),
    *("xlm-roberta",),
}
DECODERS = {"gemma", "gpt2", "gpt_neox", "llama", "mistral", "phi", "phi3", "qwen2", "qwen3"}
POOLED, TOKENS = "ForSequenceClassification", "ForTokenClassification"
HEADS: dict[str, tuple[str, ...]] = dict.fromkeys(ENCODERS, ("ForMaskedLM", POOLED, TOKENS))
HEADS |= dict.fromkeys(DECODERS, ("ForCausalLM", "LMHeadModel", POOLED, TOKENS))


def why_not(model: torch.nn.Module) -> str | None:
    """Return why padding of `model` cannot be left out; None if its loss is known to stay the same."""
    base = _base(model)
    kind, config = type(base), getattr(base, "config", None)
    heads = HEADS.get(getattr(config, "model_type", ""), ())
    if not kind.__module__.startswith("transformers.") or not kind.__name__.endswith(heads):
        return f"the loss of {kind.__name__} may depend on padding"
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        return "its prompt is learned"
    wide = next((name for name in ("output_hidden_states", "output_attentions") if getattr(config, name, False)), None)
    return f"{wide} shows padding" if wide else None


def columns(batch: Mapping[str, Any], model: torch.nn.Module) -> slice | None:
    """Return the columns of `batch` to keep; None to keep all, also if other tensors might depend on the width.

    Batches of a decoder may have padding before the tokens, too.
    """
    mask, base = batch.get(_MASK), _base(model)
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2 or not batch.keys() <= _TENSORS:
        return None
    used, counted = mask.bool(), torch.zeros_like(mask, dtype=torch.bool)
    if "labels" in batch and not type(base).__name__.endswith(POOLED):
        if getattr(batch["labels"], "shape", None) != mask.shape:
            return None
        counted = batch["labels"] != NO_TARGET
    found = (used | counted).any(0).nonzero()
    if not len(found):
        return None
    first, end, width = int(found[0]), int(found[-1]) + 1, mask.shape[1]
    # If a row's first token is a target, it is predicted from a padding column, and this attends to all columns.
    if base.config.model_type not in DECODERS or (counted[:, 1:] & ~used[:, :-1]).any():
        first = 0
    kept = -(-(end - first) // _COLUMNS) * _COLUMNS
    end = min(max(end, kept), width)
    return slice(max(end - kept, 0) if first else 0, end) if kept < width else None


def trimmed(batch: Any, model: torch.nn.Module) -> Any:
    """Return `batch` without the columns that `model` does not need."""
    kept = columns(batch, model)
    return batch if kept is None else with_columns(batch, model, kept)


def with_columns(batch: Any, model: torch.nn.Module, kept: slice) -> Any:
    """Return `batch` with only the columns `kept`, which `columns` has returned."""
    rows, width = batch[_MASK].shape
    whole = {"labels"} if type(_base(model)).__name__.endswith(POOLED) else set[str]()
    cut = copy.copy(batch)
    for name in batch.keys() - whole:
        cut[name] = batch[name][:, kept].contiguous()
    if kept.start and "position_ids" not in batch:  # decoders count positions from the first column
        cut["position_ids"] = torch.arange(width)[None, kept].expand(rows, -1)
    return cut


class TrimmedBatches:
    """The batches of a loader, trimmed for a model."""

    def __init__(self, loader: Iterable[Any], model: torch.nn.Module) -> None:
        if reason := why_not(model):
            raise UserError(REFUSED.format("trim", reason))
        self._loader, self._model = loader, model

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            if not isinstance(batch, Mapping) or _MASK not in batch:
                raise UserError(f"trim takes batches that are dictionaries with {_MASK}; leave it out for others")
            yield trimmed(batch, self._model)


def _base(model: Any) -> Any:
    """Return the transformers model that DDP, torch.compile or peft has wrapped."""
    while inner := getattr(model, "module", None) or getattr(model, "_orig_mod", None):
        model = inner
    return model.get_base_model() if hasattr(model, "get_base_model") else model
