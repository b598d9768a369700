"""The walls in csrc/: no torch below transport.hpp, no oneCCL above it."""

from __future__ import annotations

import re

from cpudist.backends.ccl.compilation import SOURCES

BELOW = {
    path.relative_to(SOURCES): path.read_text()
    for pattern in (
        "transport.hpp",
        "parallel.hpp",
        "rendezvous.*",
        "traffic.*",
        "transport_selection.*",
        "hierarchy.*",
        "kernels/*",
        "oneccl/*",
        "shared_memory/*",
    )
    for path in SOURCES.glob(pattern)
}
ABOVE = {
    path.relative_to(SOURCES): path.read_text()
    for path in SOURCES.rglob("*.[ch]pp")
    if path.relative_to(SOURCES) not in BELOW
}
TORCH = re.compile(r"#include <(torch|ATen|c10|pybind11)|\b(at|c10|c10d|torch|pybind11|py)::")
ONECCL = re.compile(r"#include <oneapi|(?<![\w:])ccl::")


def test_transports_know_nothing_of_torch() -> None:
    assert len(BELOW) > 10
    assert [str(path) for path, text in BELOW.items() if TORCH.search(text)] == []


def test_what_stands_above_them_knows_nothing_of_oneccl() -> None:
    assert len(ABOVE) > 10
    assert [str(path) for path, text in ABOVE.items() if ONECCL.search(text)] == []
    others = [str(path) for path, text in BELOW.items() if ONECCL.search(text) and path.parts[0] != "oneccl"]
    assert others == []
