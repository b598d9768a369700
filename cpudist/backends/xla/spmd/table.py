"""How parameters lie on a mesh: a table of patterns of their names, of which the first that fits a name counts.

A file holds JSON, and what none of its patterns fits is not cut:

    {"*.up.weight": ["model", "fsdp"], "*.down.weight": ["fsdp", "model"], "*.embedding.weight": [null, ["fsdp"]]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from cpudist.backends.xla.spmd import tables
from cpudist.backends.xla.spmd.specs import Entry, Spec, check, names_in, parts
from cpudist.errors import UserError


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        rows: patterns of names, and how the parameters lie that they fit.
        whose: where it comes from, for the user to read.
        exact: whether it is taken at its word, as a user's is. Ours are for every mesh and model, and leave alone what
            does not fit.
    """

    rows: Mapping[str, Spec]
    whose: str
    exact: bool = False


DEFAULT = Table(tables.ANY, "cpudist, for any model")


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
    return Table({pattern: _spec(path, pattern, row) for pattern, row in rows.items()}, path, exact=True)


def without_use(table: Table, names: Sequence[str]) -> list[str]:
    """The patterns that are the first to fit none of these names: misspelt, perhaps."""
    used = {next((pattern for pattern in table.rows if fnmatchcase(name, pattern)), None) for name in names}
    return [pattern for pattern in table.rows if pattern not in used]


def spec_for(name: str, shape: Sequence[int], sizes: Mapping[str, int], table: Table) -> Spec:
    """How the parameter `name` lies on a mesh with axes of these sizes.

    Raises:
        UserError: the spec of a table that is exact does not fit the parameter.
    """
    spec = next((spec for pattern, spec in table.rows.items() if fnmatchcase(name, pattern)), ())
    if not table.exact:
        small = len(shape) < 2  # cheaper to have than to ask for
        spec = () if small else tuple(_what_fits(entry, size, sizes) for entry, size in zip(spec, shape, strict=False))
    return check(name, shape, spec, sizes)


def _what_fits(entry: Entry, size: int, sizes: Mapping[str, int]) -> Entry:
    """Of an entry of ours, the axes that the mesh has, as many of them as divide `size`."""
    kept: tuple[str, ...] = ()
    for name in names_in(entry):
        if name in sizes and size % parts((*kept, name), sizes) == 0:
            kept += (name,)
    return kept or None


def _spec(path: str, pattern: str, row: object) -> Spec:
    entries = row if isinstance(row, list) else [row]
    spec: tuple[Any, ...] = tuple((tuple(entry) or None) if isinstance(entry, list) else entry for entry in entries)
    names = [name for entry in spec if entry is not None for name in (entry if isinstance(entry, tuple) else (entry,))]
    if not all(isinstance(name, str) for name in names) or not isinstance(row, list):
        raise UserError(
            f"--sharding {path}: {pattern!r} has {row!r}; write a list of axes' names, lists of them, or null"
        )
    return spec
