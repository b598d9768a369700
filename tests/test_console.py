"""Amounts as text."""

from __future__ import annotations

import pytest

from cpudist.console import number_of, size


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KB"),
        (64 << 10, "64 KB"),
        (1536 << 20, "1.5 GB"),
        (400 << 20, "400 MB"),
        (128 << 30, "128 GB"),
        (3 << 50, "3072 TB"),
    ],
)
def test_sizes_are_in_powers_of_1024(count: int, expected: str) -> None:
    assert size(count) == expected


def test_one_and_several() -> None:
    assert [number_of(count, "core") for count in (0, 1, 2)] == ["0 cores", "1 core", "2 cores"]
