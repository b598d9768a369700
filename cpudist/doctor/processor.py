"""What the CPU can compute with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from cpudist.doctor.finding import Finding
from cpudist.machine.files import Files

# The kernel's names of what makes training faster: x86, and Arm's.
_BFLOAT16 = {"amx_bf16": "AMX", "avx512_bf16": "AVX512_BF16", "bf16": "Arm's BF16", "svebf16": "SVE BF16"}
_FLOAT16 = {"amx_fp16": "AMX", "avx512_fp16": "AVX512_FP16", "fphp": "Arm's FP16"}


def check(files: Files, env: Mapping[str, str]) -> Iterator[Finding]:
    """Number formats that the CPU computes in, from /proc/cpuinfo."""
    text = files.read("proc/cpuinfo") or ""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    if found is None:
        yield Finding("warning", "CPU", "/proc/cpuinfo does not say what this CPU can do")
        return
    flags = set(found[1].split())
    bfloat16 = [name for flag, name in _BFLOAT16.items() if flag in flags]
    float16 = [name for flag, name in _FLOAT16.items() if flag in flags]
    if bfloat16:
        also = f"; float16 by {' and '.join(float16)}" if float16 else "; no float16"
        yield Finding("ok", "CPU", f"bfloat16 by {' and '.join(bfloat16)}: --bf16 is faster than float32{also}")
    else:
        yield Finding(
            "warning",
            "CPU",
            "this CPU has no bfloat16 arithmetic (AVX512_BF16, AMX): --bf16 would be slower than float32",
            "train in float32",
        )
    if "hypervisor" in flags:
        yield Finding("ok", "virtual machine", "cores may be shared with other machines: timings vary")
