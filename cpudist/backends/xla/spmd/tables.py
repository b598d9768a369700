"""How the parameters of known architectures lie on a mesh: the tables that the recipes bring, and that of all others.

They cut as Megatron-LM does (Shoeybi et al., 2019, section 3): the first of two layers by what comes out, the second by
what goes in, so that between the two nothing is sent. Axes that a mesh has not, or that do not divide a parameter
evenly, are left out: a table is for every mesh and every size of a model.
"""

from __future__ import annotations

from cpudist.backends.xla.spmd.specs import Spec

_FIRST: Spec = ("model", "fsdp")  # of a weight of (out, in), by what comes out
_SECOND: Spec = ("fsdp", "model")  # by what goes in
_EMBEDDING: Spec = (None, ("fsdp", "model"))  # a vocabulary seldom divides, the width does
_REST: dict[str, Spec] = {"*": _FIRST}

# GPT-2's linear layers hold (in, out).
_GPT2 = {
    "*.attn.c_attn.weight": _SECOND,
    "*.attn.c_proj.weight": _FIRST,
    "*.mlp.c_fc.weight": _SECOND,
    "*.mlp.c_proj.weight": _FIRST,
}
# Llama and its kin; OPT and torch's own transformer; GPT-NeoX.
_SECOND_OF_DECODERS = dict.fromkeys(
    (
        *("*.o_proj.weight", "*.down_proj.weight"),
        *("*.out_proj.weight", "*.fc2.weight", "*.linear2.weight"),
        *("*.attention.dense.weight", "*.dense_4h_to_h.weight"),
    ),
    _SECOND,
)
# BERT, RoBERTa and ViT; DistilBERT; ALBERT.
_SECOND_OF_ENCODERS = dict.fromkeys(
    (
        *("*.attention.output.dense.weight", "*.output.dense.weight"),
        *("*.out_lin.weight", "*.ffn.lin2.weight"),
        *("*.attention.dense.weight", "*.ffn_output.weight"),
    ),
    _SECOND,
)
_EMBEDDINGS = dict.fromkeys(
    ("*embed*.weight", "*wte.weight", "*wpe.weight", "lm_head.weight"),
    _EMBEDDING,
)
# An image's pieces are embedded by a convolution.
_PATCHES = {"*.projection.weight": _FIRST}
# The small net of cpudist-train images: stages of two convolutions, which are the modules 0 and 3 of each.
_CONVNET = {"features.*.3.weight": _SECOND}

DECODERS: dict[str, Spec] = {**_GPT2, **_SECOND_OF_DECODERS, **_EMBEDDINGS, **_REST}
ENCODERS: dict[str, Spec] = {**_SECOND_OF_ENCODERS, **_EMBEDDINGS, **_REST}
IMAGES: dict[str, Spec] = {**_CONVNET, **_SECOND_OF_ENCODERS, **_PATCHES, **_REST}
# For whatever a script trains.
ANY: dict[str, Spec] = {**_GPT2, **_SECOND_OF_DECODERS, **_SECOND_OF_ENCODERS, **_PATCHES, **_EMBEDDINGS, **_REST}
