"""Amounts as text."""

from __future__ import annotations

import pytest

from cpudist.console import curve, duration, names_of, option, size
from cpudist.launchers import notebook


def test_sizes_and_times() -> None:
    sizes = {0: "0 B", 1023: "1023 B", 1024: "1 KB", 1536 << 20: "1.5 GB", 400 << 20: "400 MB", 3 << 50: "3072 TB"}
    assert {count: size(count) for count in sizes} == sizes
    assert [duration(seconds) for seconds in (4.06, 59.9, 90, 3 * 3600)] == ["4.1 s", "59.9 s", "0:01:30", "3:00:00"]


def test_of_many_hosts_the_first_are_named() -> None:
    assert names_of(["h0", "h0", "h1"]) == "h0, h1"
    assert [names_of(f"h{host}" for host in range(count)) for count in (3, 4, 5)] == [
        "h0, h1, h2",
        "h0, h1, h2 and 1 more host",
        "h0, h1, h2 and 2 more hosts",
    ]


def test_the_curve_of_a_training_that_diverges() -> None:
    assert curve([3.0, 2.0, float("nan"), 4.0, float("inf")]) == "▅▁█"
    assert curve([float("nan")]) == curve([]) == ""


def test_an_option_is_written_as_its_user_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (option("backend", "gloo"), option("async_checkpoint")) == ("--backend gloo", "--async-checkpoint")
    monkeypatch.setenv(notebook.JOB, "job/0")
    assert option("backend", "gloo") == 'notebook_launcher(…, backend="gloo")'
    assert option("timeout") == "notebook_launcher(…, timeout=…)"
