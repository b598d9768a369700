"""Partition specs of parameters and batches.

An entry of a spec has the names of the mesh's axes that divide an axis of the tensor; () does not divide it. If a spec
does not divide a tensor evenly, the runtime pads the tensor without a warning; such specs are not used here.
"""

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from cpudist.backends.xla import mesh
from cpudist.errors import UserError

Entry: TypeAlias = tuple[str, ...]
Spec: TypeAlias = tuple[Entry, ...]

# Specs for the parameters of any model; the first pattern that matches a parameter's name counts. As in Megatron-LM
# (Shoeybi et al., 2019, section 3), the first of two layers is divided by its outputs, the second by its inputs.
# Nothing is then sent between the two.
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


def parts(entry: Entry, sizes: Mapping[str, int]) -> int:
    """Return the number of parts into which an entry divides an axis of a tensor; `sizes`: the mesh's axes."""
    return math.prod(sizes[name] for name in entry)


def spec_of_batch(shape: Sequence[int], entry: Entry, sizes: Mapping[str, int]) -> Spec:
    """Return the spec of a batch whose first axis `entry` divides evenly; otherwise raise `UserError`."""
    if shape[0] % parts(entry, sizes):
        raise UserError(
            f"a batch ({' x '.join(map(str, shape))}) does not divide evenly by {', '.join(entry)} on the "
            f"mesh {mesh.text_of(sizes)}: {shape[0]} into {parts(entry, sizes)} parts; take another batch size or mesh"
        )
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
