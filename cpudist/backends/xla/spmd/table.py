"""How parameters lie on a mesh: a table of patterns of their names, ours or that of a file.

A file holds JSON, the first pattern that fits a parameter's name counts, and what none fits is not cut:

    {"*.up.weight": ["model", "fsdp"], "*.down.weight": ["fsdp", "model"], "*.embedding.weight": [null, ["fsdp"]]}

Ours is for the architectures of the recipes (GPT-2, BERT, ViT) and most like them, and cuts as Megatron-LM does
(Shoeybi et al., 2019, section 3): the first of two layers by what comes out, the second by what goes in, so that
between the two nothing is sent. It leaves alone what does not divide evenly; a file's table is taken at its word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from cpudist.backends.xla.spmd.specs import Entry, Spec, check, names_in, parts
from cpudist.errors import UserError

Table = dict[str, Spec]

_OUT: Spec = ("model", "fsdp")  # of a weight of (out, in)
_IN: Spec = ("fsdp", "model")

OURS: Table = {
    # GPT-2's linear layers hold (in, out).
    "*.attn.c_attn.weight": _IN,
    "*.attn.c_proj.weight": _OUT,
    "*.mlp.c_fc.weight": _IN,
    "*.mlp.c_proj.weight": _OUT,
    # BERT and ViT: attention's and the block's second layers.
    "*.attention.output.dense.weight": _IN,
    "*.output.dense.weight": _IN,
    # Llama and its kin.
    "*.o_proj.weight": _IN,
    "*.down_proj.weight": _IN,
    # A vocabulary seldom divides, the width does.
    "*embed*.weight": (None, ("fsdp", "model")),
    "*.wte.weight": (None, ("fsdp", "model")),
    "*.wpe.weight": (None, ("fsdp", "model")),
    "lm_head.weight": (None, ("fsdp", "model")),
    "*": _OUT,
}


def read(path: str) -> Table:
    """The table in the JSON file `path`.

    Raises:
        UserError: there is no such file, or it is no table.
    """
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the table --sharding {path}: {error}") from error
    if not isinstance(rows, dict):
        raise UserError(f'--sharding {path} is no table; write {{"pattern of names": ["axis", null], …}}')
    return {pattern: _spec(path, pattern, row) for pattern, row in rows.items()}


def spec_for(name: str, shape: Sequence[int], sizes: Mapping[str, int], table: Table | None) -> Spec:
    """How the parameter `name` lies on a mesh with axes of these sizes; without `table`, by ours.

    Raises:
        UserError: the table's spec does not fit the parameter.
    """
    if table is not None:
        spec = next((spec for pattern, spec in table.items() if fnmatchcase(name, pattern)), ())
        return check(name, shape, spec, sizes)
    if len(shape) < 2:  # small, and cheaper to have than to ask for
        return (None,) * len(shape)
    spec = next(spec for pattern, spec in OURS.items() if fnmatchcase(name, pattern))
    fitting = [_what_fits(entry, size, sizes) for entry, size in zip(spec, shape, strict=False)]
    return check(name, shape, tuple(fitting), sizes)


def _what_fits(entry: Entry, size: int, sizes: Mapping[str, int]) -> Entry:
    """Of an entry of ours, the axes that the mesh has, as many of them as divide `size`."""
    kept: tuple[str, ...] = ()
    for name in names_in(entry):
        if name in sizes and size % parts((*kept, name), sizes) == 0:
            kept += (name,)
    return kept or None


def _spec(path: str, pattern: str, row: object) -> Spec:
    entries = row if isinstance(row, list) else [row]
    spec: tuple[Any, ...] = tuple(tuple(entry) if isinstance(entry, list) else entry for entry in entries)
    names = [name for entry in spec for name in (entry if isinstance(entry, tuple) else (entry,))]
    if not all(name is None or isinstance(name, str) for name in names) or not isinstance(row, list):
        raise UserError(
            f"--sharding {path}: {pattern!r} has {row!r}; write a list of axes' names, lists of them, or null"
        )
    return spec
