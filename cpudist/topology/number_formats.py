"""Number formats that the processor has arithmetic for, by the kernel's names of its features: x86's, and Arm's."""

from __future__ import annotations

import re

from cpudist.topology.kernel_files import Files

BFLOAT16 = {"amx_bf16": "AMX", "avx512_bf16": "AVX512_BF16", "bf16": "Arm's BF16", "svebf16": "SVE BF16"}
FLOAT16 = {"amx_fp16": "AMX", "avx512_fp16": "AVX512_FP16", "fphp": "Arm's FP16"}


def features(files: Files) -> frozenset[str] | None:
    """Return the features of this machine's processors; None where the kernel does not list them."""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", files.read("proc/cpuinfo") or "", re.MULTILINE)
    return None if found is None else frozenset(found[1].split())


def units(features: frozenset[str], number_format: dict[str, str]) -> list[str]:
    """Return the names of the units among `features` that compute in a format: `BFLOAT16` or `FLOAT16`."""
    return [name for feature, name in number_format.items() if feature in features]
