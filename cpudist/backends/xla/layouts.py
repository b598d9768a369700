"""Layouts: how a mesh of devices divides parameters, by default those of any known architecture.

A layout maps patterns of parameters' names to partition specs; the first pattern that matches a name is used. A spec
has an entry for each axis of the parameter: the mesh's axis by which it is divided, several of them, or None (not
divided). Axes that are not named at the end are not divided.

These divide as Megatron-LM does (Shoeybi et al., 2019, section 3): the first of two layers by its outputs, the second
by its inputs, without communication between the two. A backend leaves out axes that a mesh does not have or that do not
divide a parameter evenly, so one layout serves every mesh and every size of a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Entry: TypeAlias = "str | tuple[str, ...] | None"
Spec: TypeAlias = "tuple[Entry, ...]"
Layout: TypeAlias = "Mapping[str, Spec]"

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
# The second layers of Llama and models like it; of OPT and torch's own transformer; of GPT-NeoX.
_SECOND_OF_DECODERS = dict.fromkeys(
    (
        *("*.o_proj.weight", "*.down_proj.weight"),
        *("*.out_proj.weight", "*.fc2.weight", "*.linear2.weight"),
        *("*.attention.dense.weight", "*.dense_4h_to_h.weight"),
    ),
    _BY_INPUTS,
)
# The second layers of BERT, RoBERTa and ViT; of DistilBERT; of ALBERT.
_SECOND_OF_ENCODERS = dict.fromkeys(
    (
        *("*.attention.output.dense.weight", "*.output.dense.weight"),
        *("*.out_lin.weight", "*.ffn.lin2.weight"),
        *("*.attention.dense.weight", "*.ffn_output.weight"),
    ),
    _BY_INPUTS,
)
_EMBEDDINGS = dict.fromkeys(
    ("*embed*.weight", "*wte.weight", "*wpe.weight", "lm_head.weight"),
    _EMBEDDING,
)
# The convolution by which ViT embeds the patches of an image.
_PATCHES = {"*.projection.weight": _BY_OUTPUTS}
_SECOND = {**_SECOND_OF_DECODERS, **_SECOND_OF_ENCODERS}
ANY: dict[str, Spec] = {**_GPT2, **_SECOND, **_PATCHES, **_EMBEDDINGS, "*": _BY_OUTPUTS}
