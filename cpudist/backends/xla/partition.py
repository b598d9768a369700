"""Partition specs, and the table that maps parameters to them.

An entry of a spec is the name of a mesh's axis, several names (divided by all of them), or None (not divided); axes
that are not named at the end are not divided. The runtime accepts specs that do not divide a tensor evenly and pads it
without a warning; `check` does not. The first pattern that matches a parameter's name is used. A file holds JSON, and
parameters without a matching pattern are not divided:

    {"*.up.weight": ["model", "fsdp"], "*.down.weight": ["fsdp", "model"], "*.embedding.weight": [null, ["fsdp"]]}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeAlias

from cpudist.errors import UserError

Entry: TypeAlias = "str | tuple[str, ...] | None"
Spec: TypeAlias = "tuple[Entry, ...]"
Layout: TypeAlias = "Mapping[str, Spec]"

# The table for any model divides as Megatron-LM does (Shoeybi et al., 2019, section 3): the first of two layers by its
# outputs, the second by its inputs, so that nothing is sent between the two.
_BY_OUTPUTS: Spec = ("model", "fsdp")  # of a weight of shape (outputs, inputs)
_BY_INPUTS: Spec = ("fsdp", "model")
_EMBEDDING: Spec = (None, ("fsdp", "model"))  # by the width: the size of a vocabulary is seldom divisible

# GPT-2's linear layers hold weights of shape (inputs, outputs).
_GPT2 = {
    "*.attn.c_attn.weight": _BY_INPUTS,
    "*.attn.c_proj.weight": _BY_OUTPUTS,
    "*.mlp.c_fc.weight": _BY_INPUTS,
    "*.mlp.c_proj.weight": _BY_OUTPUTS,
}
_SECOND = dict.fromkeys(
    (
        # Of Llama and models like it; of OPT and torch's own transformer; of GPT-NeoX.
        *("*.o_proj.weight", "*.down_proj.weight"),
        *("*.out_proj.weight", "*.fc2.weight", "*.linear2.weight"),
        *("*.attention.dense.weight", "*.dense_4h_to_h.weight"),
        # Of BERT, RoBERTa and ViT; of DistilBERT; of ALBERT.
        *("*.attention.output.dense.weight", "*.output.dense.weight"),
        *("*.out_lin.weight", "*.ffn.lin2.weight"),
        "*.ffn_output.weight",
    ),
    _BY_INPUTS,
)
_EMBEDDINGS = dict.fromkeys(("*embed*.weight", "*wte.weight", "*wpe.weight", "lm_head.weight"), _EMBEDDING)
# The convolution by which ViT embeds the patches of an image.
_PATCHES = {"*.projection.weight": _BY_OUTPUTS}
_ANY: dict[str, Spec] = {**_GPT2, **_SECOND, **_PATCHES, **_EMBEDDINGS, "*": _BY_OUTPUTS}


@dataclass(frozen=True)
class Table:
    """Partition specs of a model's parameters.

    Attributes:
        rows: patterns of names, each with the spec of the parameters that it matches.
        source: where the table comes from, for the user to read.
        exact: whether a spec that does not fit its parameter is an error, as in a user's table. Entries of a layout
            that do not fit are left out, since it is for every mesh and model.
    """

    rows: Layout
    source: str
    exact: bool = False


DEFAULT = Table(_ANY, "cpudist, for any model")


def names_in(entry: Entry) -> tuple[str, ...]:
    """Return the mesh's axes in one entry of a spec."""
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else entry


def parts(entry: Entry, sizes: Mapping[str, int]) -> int:
    """Return into how many parts an entry divides an axis; `sizes` are those of the mesh's axes."""
    return math.prod(sizes[name] for name in names_in(entry))


def check(what: str, shape: Sequence[int], spec: Spec, sizes: Mapping[str, int]) -> Spec:
    """Return `spec` with an entry for each axis of the tensor `what`, on a mesh whose axes have these sizes.

    Raises:
        UserError: the spec has more entries than the tensor has axes, an axis that is not the mesh's, an axis twice, or
            does not divide evenly; the line names the tensor and the spec.
    """
    tensor, wanted = f"{what} ({' x '.join(map(str, shape)) or 'a number'})", text_of(spec)
    mesh = ", ".join(f"{name}={size}" for name, size in sizes.items())
    if len(spec) > len(shape):
        raise UserError(
            f"the partition spec {wanted} has {len(spec)} entries, more than {tensor} has axes; leave some out"
        )
    names = [name for entry in spec for name in names_in(entry)]
    unknown = next((name for name in names if name not in sizes), None)
    if unknown is not None:
        raise UserError(
            f"the partition spec {wanted} of {tensor} names {unknown}, which the mesh lacks; take axes of {mesh}"
        )
    if len(set(names)) < len(names):
        raise UserError(f"the partition spec {wanted} of {tensor} names an axis twice; name each axis once")
    for size, entry in zip(shape, spec, strict=False):
        if size % parts(entry, sizes):
            raise UserError(
                f"{tensor} does not divide evenly by the partition spec {wanted} on the mesh {mesh}: {size} into "
                f"{parts(entry, sizes)} parts; take another size, spec or mesh"
            )
    return (*spec, *[None] * (len(shape) - len(spec)))


def text_of(spec: Spec) -> str:
    """Return a spec in the form (data, (fsdp, model), -)."""
    return f"({', '.join(_entry_text(names_in(entry)) for entry in spec)})"


def _entry_text(names: tuple[str, ...]) -> str:
    return f"({', '.join(names)})" if len(names) > 1 else names[0] if names else "-"


def read(path: str) -> Table:
    """Read the table in the JSON file `path`.

    Raises:
        UserError: there is no such file, or it holds no table.
    """
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the table --sharding {path}: {error}; give a file of JSON") from error
    if not isinstance(rows, dict):
        raise UserError(f'--sharding {path} is no table; write {{"pattern of names": ["axis", null], …}}')
    return Table({pattern: _spec(path, pattern, row) for pattern, row in rows.items()}, path, exact=True)


def without_use(table: Table, names: Sequence[str]) -> list[str]:
    """Return the patterns that decide about none of these names, perhaps because they are misspelt."""
    used = {next((pattern for pattern in table.rows if fnmatchcase(name, pattern)), None) for name in names}
    return [pattern for pattern in table.rows if pattern not in used]


def spec_for(name: str, shape: Sequence[int], sizes: Mapping[str, int], table: Table) -> Spec:
    """Return the spec of the parameter `name` of this shape, on a mesh with axes of these sizes.

    Raises:
        UserError: the spec of an exact table does not fit the parameter.
    """
    spec = next((spec for pattern, spec in table.rows.items() if fnmatchcase(name, pattern)), ())
    if not table.exact:
        small = len(shape) < 2  # a copy on every device is cheaper than communication
        spec = () if small else tuple(_fitting(entry, size, sizes) for entry, size in zip(spec, shape, strict=False))
    return check(name, shape, spec, sizes)


def _fitting(entry: Entry, size: int, sizes: Mapping[str, int]) -> Entry:
    """Return the axes of an entry that are in the mesh and whose product divides `size`."""
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
