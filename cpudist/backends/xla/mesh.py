"""The axes of `--mesh`, and the partition specs of parameters and batches on it.

    data=4              four devices, each with a quarter of the batch
    data=2,model=-1     two halves of the batch, and parameters in (devices / 2) parts

A spec has an entry for each axis of a tensor: the names of the mesh's axes that divide it, or () if it is not divided.
If a spec does not divide a tensor evenly, the runtime pads the tensor without a warning; such specs are not used here.
"""

import math
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from cpudist.errors import UserError

BATCH_AXES = ("data", "fsdp")  # The axes that divide a batch. Parameters are divided by fsdp and model.

_AXIS = re.compile(r"([A-Za-z_]\w*)=(-1|[1-9]\d*)")

Entry: TypeAlias = tuple[str, ...]
Spec: TypeAlias = tuple[Entry, ...]

# Specs for the parameters of any model; the first pattern that matches a parameter's name counts. As in Megatron-LM
# (Shoeybi et al., 2019, section 3), the first of two layers is sharded along its outputs (column-parallel), the second
# along its inputs (row-parallel). Nothing is then sent between the two.
_BY_OUTPUTS: Spec = (("model",), ("fsdp",))  # for weights of shape (outputs, inputs)
_BY_INPUTS: Spec = (("fsdp",), ("model",))
_EMBEDDING: Spec = ((), ("fsdp", "model"))  # divides the width, because vocabulary sizes are seldom divisible

_GPT2 = {  # GPT-2's linear layers hold weights of shape (inputs, outputs).
    "*.attn.c_attn.weight": _BY_INPUTS,
    "*.attn.c_proj.weight": _BY_OUTPUTS,
    "*.mlp.c_fc.weight": _BY_INPUTS,
    "*.mlp.c_proj.weight": _BY_OUTPUTS,
}
_SECOND = dict.fromkeys(
    (
        # Llama and similar models; OPT and torch's own transformer; GPT-NeoX.
        *("*.o_proj.weight", "*.down_proj.weight"),
        *("*.out_proj.weight", "*.fc2.weight", "*.linear2.weight"),
        *("*.attention.dense.weight", "*.dense_4h_to_h.weight"),
        # BERT, RoBERTa and ViT; DistilBERT; ALBERT.
        *("*.attention.output.dense.weight", "*.output.dense.weight"),
        *("*.out_lin.weight", "*.ffn.lin2.weight"),
        "*.ffn_output.weight",
    ),
    _BY_INPUTS,
)
_EMBEDDINGS = dict.fromkeys(("*embed*.weight", "*wte.weight", "*wpe.weight", "lm_head.weight"), _EMBEDDING)
_PATCHES = {"*.projection.weight": _BY_OUTPUTS}  # ViT's convolution, which embeds the patches of an image.
_TABLE: dict[str, Spec] = {**_GPT2, **_SECOND, **_PATCHES, **_EMBEDDINGS, "*": _BY_OUTPUTS}


def parse(text: str) -> dict[str, int]:
    """Return the number of devices along each axis in `text`, or raise `UserError`. One number may be -1: the rest."""
    axes: dict[str, int] = {}
    for part in text.replace(" ", "").split(","):
        found = _AXIS.fullmatch(part)
        if found is None:
            remedy = "write name=devices, e.g. data=2,model=2, or -1 for the rest"
            raise UserError(f"--mesh {text}: {part!r} is no axis; {remedy}")
        if found[1] in axes:
            raise UserError(f"--mesh {text} names an axis twice; give each axis a name of its own")
        axes[found[1]] = int(found[2])
    if list(axes.values()).count(-1) > 1:
        raise UserError(f"--mesh {text}: only one axis can have the rest of the devices (-1); give the others a number")
    return axes


def places(axes: Mapping[str, int]) -> int | None:
    """Return the number of devices that the axes need; None if an axis is -1."""
    return None if -1 in axes.values() else math.prod(axes.values())


def fit(axes: Mapping[str, int], devices: int) -> dict[str, int]:
    """Return the axes with -1 replaced by a number, or raise `UserError` if they need more or fewer `devices`."""
    given = math.prod(size for size in axes.values() if size != -1)
    fitted = {name: devices // given if size == -1 else size for name, size in axes.items()}
    if places(fitted) != devices:
        many = "a multiple of " if places(axes) is None else ""
        why = f"--mesh {text_of(axes)} needs {many}{given} devices, and there are {devices}"
        raise UserError(f"{why}; on the CPU set CPU_NUM_DEVICES")
    return fitted


def text_of(axes: Mapping[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in axes.items())


def parts(entry: Entry, sizes: Mapping[str, int]) -> int:
    """Return the number of parts into which an entry divides an axis of a tensor; `sizes`: the mesh's axes."""
    return math.prod(sizes[name] for name in entry)


def spec_of_batch(shape: Sequence[int], entry: Entry, sizes: Mapping[str, int]) -> Spec:
    """Return the spec that divides a batch's first axis by `entry`; `UserError` if it does not divide evenly."""
    if shape[0] % parts(entry, sizes):
        batch, number = " x ".join(map(str, shape)), parts(entry, sizes)
        why = f"a batch ({batch}) does not divide evenly by {', '.join(entry)} on the mesh {text_of(sizes)}"
        raise UserError(f"{why}: {shape[0]} into {number} parts; take another batch size or mesh")
    return (entry, *[()] * (len(shape) - 1))


def spec_for(name: str, shape: Sequence[int], sizes: Mapping[str, int]) -> Spec:
    """Return the spec of the parameter `name` of this shape, on a mesh with axes of these sizes.

    Axes that the mesh does not have, or that do not divide evenly, are left out.
    """
    if len(shape) < 2:  # a copy on every device is cheaper than communication
        return ((),) * len(shape)
    spec = next(spec for pattern, spec in _TABLE.items() if fnmatchcase(name, pattern))
    fitting = [_fitting(entry, size, sizes) for entry, size in zip(spec, shape, strict=False)]
    return (*fitting, *[()] * (len(shape) - len(fitting)))


def _fitting(entry: Entry, size: int, sizes: Mapping[str, int]) -> Entry:
    """Return the axes of an entry that are in the mesh and whose product divides `size`."""
    kept: Entry = ()
    for name in entry:
        if name in sizes and size % parts((*kept, name), sizes) == 0:
            kept += (name,)
    return kept
