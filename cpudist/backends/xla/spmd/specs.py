"""Partition specs: for each axis of a tensor, the axes of the mesh along which it is cut.

An entry is the name of a mesh's axis, several names (cut along all of them), or None (not cut); what is not named at
the end is not cut. The runtime takes specs that do not divide a tensor evenly and pads it, without a word.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from cpudist.errors import UserError

Entry: TypeAlias = "str | tuple[str, ...] | None"
Spec: TypeAlias = "tuple[Entry, ...]"


def names_in(entry: Entry) -> tuple[str, ...]:
    """The mesh's axes in one entry of a spec."""
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else entry


def parts(entry: Entry, sizes: Mapping[str, int]) -> int:
    """Into how many parts an entry cuts, on a mesh whose axes have these sizes."""
    return math.prod(sizes[name] for name in names_in(entry))


def check(what: str, shape: Sequence[int], spec: Spec, sizes: Mapping[str, int]) -> Spec:
    """`spec` with an entry for each axis of a tensor, if it fits.

    Args:
        what: what the tensor is called.
        shape: the tensor's.
        spec: how it is to be cut.
        sizes: the mesh's axes.

    Raises:
        UserError: it has more entries than the tensor has axes, names an axis that the mesh has not, or one twice, or
            does not divide evenly; the line names the tensor and the spec.
    """
    tensor, wanted = f"{what} ({' x '.join(map(str, shape)) or 'a number'})", text_of(spec)
    mesh = ", ".join(f"{name}={size}" for name, size in sizes.items())
    if len(spec) > len(shape):
        raise UserError(f"the partition spec {wanted} has {len(spec)} entries, more than {tensor} has axes")
    names = [name for entry in spec for name in names_in(entry)]
    unknown = next((name for name in names if name not in sizes), None)
    if unknown is not None:
        raise UserError(f"the partition spec {wanted} of {tensor} names {unknown}, the axes of the mesh are {mesh}")
    if len(set(names)) < len(names):
        raise UserError(f"the partition spec {wanted} of {tensor} names an axis twice; each can cut it once")
    for size, entry in zip(shape, spec, strict=False):
        if size % parts(entry, sizes):
            raise UserError(
                f"{tensor} does not divide evenly by the partition spec {wanted}: {size} into {parts(entry, sizes)} "
                f"parts; the mesh is {mesh}"
            )
    return (*spec, *[None] * (len(shape) - len(spec)))


def text_of(spec: Spec) -> str:
    """A spec as people write it: (data, (fsdp, model), -)."""
    return f"({', '.join(_entry_text(names_in(entry)) for entry in spec)})"


def _entry_text(names: tuple[str, ...]) -> str:
    return f"({', '.join(names)})" if len(names) > 1 else names[0] if names else "-"
