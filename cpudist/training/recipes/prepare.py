"""Prepare samples for a model: lengths in tokens, and results that are computed once for all ranks of a node."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset
from transformers import PretrainedConfig, PreTrainedTokenizerBase, TrainingArguments

from cpudist.job import current
from cpudist.version import __version__

_LENGTHS = 4  # of padded batches


def max_length(wanted: int, tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> int:
    """Return the tokens of a sample: `wanted`, or as many as tokenizer and model take if that is less."""
    positions = getattr(config, "max_position_embeddings", None) or 0  # with relative positions: none, 0 or -1
    return int(min(length for length in (wanted, tokenizer.model_max_length, positions) if length > 0))


def padding_multiple(longest: int) -> int | None:
    """Return a collator's ``pad_to_multiple_of``, by which batches have at most 4 lengths; None where any will do."""
    if not needs_fixed_shapes():
        return None
    return next(longest // lengths for lengths in range(_LENGTHS, 0, -1) if longest % lengths == 0)


def needs_fixed_shapes() -> bool:
    """Return whether the job's backend compiles a program for each shape of a tensor, which takes long."""
    job = current()
    return job is not None and job.backend.fixed_shapes


def map_cached(
    samples: Dataset,
    function: Callable[..., dict[str, Any]],
    options: Mapping[str, Any],
    arguments: TrainingArguments,
    desc: str,
    **kwargs: Any,
) -> Dataset:
    """Return ``samples.map(function)``; the first rank of each node computes it, the others read it from the cache.

    Args:
        samples: to be prepared.
        function: makes a batch of columns of a batch of columns and `options`; they replace the former columns.
        options: all that the result depends on besides `samples`.
        arguments: for the order of the ranks.
        desc: what the progress bar says.
        kwargs: further arguments of ``Dataset.map``.
    """
    # datasets would hash a tokenizer by its pickle, which changes with use, so that the cache is missed.
    key = fingerprint(samples._fingerprint, function.__qualname__, *options, *options.values())
    if not samples.cache_files:  # datasets caches only what comes from files
        cache = Path(datasets.config.HF_DATASETS_CACHE) / "cpudist"
        cache.mkdir(parents=True, exist_ok=True)
        kwargs["cache_file_name"] = str(cache / f"{key}.arrow")
    with arguments.main_process_first(local=True, desc=desc):
        return samples.map(
            function,
            fn_kwargs=dict(options),
            batched=True,
            remove_columns=samples.column_names,
            new_fingerprint=key,
            desc=desc,
            **kwargs,
        )


def fingerprint(*parts: Any) -> str:
    """Return a hash of `parts` and cpudist's version, 32 hexadecimal digits, the same on all ranks and in all runs.

    A tokenizer is hashed by what it does, anything else by its `repr`.
    """
    digest = hashlib.sha256(__version__.encode())
    for part in parts:
        content = _identity(part).encode()
        digest.update(b"%d:%b" % (len(content), content))
    return digest.hexdigest()[:32]


def _identity(part: Any) -> str:
    backend = getattr(part, "backend_tokenizer", None)
    if backend is None:
        return repr(part)
    content = json.loads(backend.to_str())
    del content["truncation"], content["padding"]  # set by the latest call
    special = [part.special_tokens_map, part.padding_side, part.model_input_names]
    return json.dumps([content, repr(special)])
