"""The walls in csrc/: no torch below transport.hpp, no oneCCL above it."""

import re

from cpudist.backends.ccl.compilation import SOURCES

_PARTS = "agreement|transport|parallel|rendezvous|traffic|transport_selection|hierarchy"
_BELOW = re.compile(rf"({_PARTS})\.[ch]pp|(kernels|mpi|oneccl|shared_memory)/.*")
FILES = {str(path.relative_to(SOURCES)): path.read_text() for path in SOURCES.rglob("*.[ch]pp")}
BELOW = {name: text for name, text in FILES.items() if _BELOW.fullmatch(name)}
TORCH = re.compile(r"#include <(torch|ATen|c10|pybind11)|\b(at|c10|c10d|torch|pybind11|py)::")
ONECCL = re.compile(r"#include <oneapi|(?<![\w:])ccl::")


def test_transports_know_nothing_of_torch() -> None:
    assert len(BELOW) > 10
    assert [name for name, text in BELOW.items() if TORCH.search(text)] == []


def test_oneccl_alone_knows_oneccl() -> None:
    assert len(FILES) > len(BELOW) + 10
    assert {name.split("/")[0] for name, text in FILES.items() if ONECCL.search(text)} == {"oneccl"}
