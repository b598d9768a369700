"""All wrong values are reported at once, each with its option, and nothing is printed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Refused = Callable[..., list[str]]


def test_all_at_once(refused: Refused) -> None:
    words = ["--replicas", "0", "--cpus", "12 cores", "--name", "My_Job", "--memory", "lots", "--grace", "1m"]
    lines = refused("pytorchjob", *words, "--env", "RANK=1", "--env", "PATH", target=())
    assert [line.partition(":")[2].split("'")[0].strip() for line in lines] == [
        "no TARGET; give a script, or -m and a module, after `--`, as for cpudist-train",
        *("--env", "--env", "--name", "--replicas", "--cpus", "--memory", "--grace"),
    ]
    assert "cpudist: --cpus '12 cores': not a whole number of CPUs, such as 12" in lines
    assert "cpudist: --replicas '0': not a whole number of at least 1" in lines
    assert lines[3].startswith("cpudist: --name 'My_Job': DNS refuses this name")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *(("--name", value) for value in ("", "1a", "a-", "a.b", "ä", "a" * 46, "a\n")),
        *(("--namespace", value) for value in ("A", "a.b", "-", "a" * 64)),
        *(("--image", value) for value in ("Upper/case", "a b", "a:", "a/:x", "a@sha256:0")),
        *(("--replicas", value) for value in ("-1", "1.0", "two", "٢", "9999999999")),
        *(("--cpus", value) for value in ("0", "1.5", "500m")),
        *(("--memory", value) for value in ("0", "1", "16 Gi", "16GB", "-1Gi", "1e9")),
        *(("--pvc", value) for value in ("My", "a/b")),
        *(("--mount-path", value) for value in ("data", "/", "/a:b")),
        *(("--env", value) for value in ("A", "1A=2", "A-B=1", "WORLD_SIZE=2", "PET_NNODES=1")),
        *(("--grace", value) for value in ("0", "1m")),
    ],
)
def test_each(refused: Refused, flag: str, value: str) -> None:
    (line,) = refused("pytorchjob", f"{flag}={value}")
    assert line.startswith(f"cpudist: {flag} {value!r}: ")


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["--ranks-per-pod", "8", "--cpus", "4"], "--ranks-per-pod 8: more ranks than the 4 CPUs of a pod"),
        (["--ranks-per-pod", "4", "--memory", "1Gi"], "--memory 1Gi: a pod with 4 ranks needs 2624Mi at least"),
        (
            ["--shm", "8Gi", "--memory", "8Gi"],
            "--memory 8Gi: a pod with 1 rank needs 8592Mi at least, 8Gi of it",
        ),
        (["--grace", "10"], "--grace 10: torchrun or `cpudist launch` needs 10 seconds of it to end"),
        (["--min-replicas", "3"], "--min-replicas 3: more than --replicas 2"),
        (["--max-replicas", "1"], "--max-replicas 1: fewer than --replicas 2"),
    ],
)
def test_what_does_not_fit_together(refused: Refused, words: list[str], start: str) -> None:
    (line,) = refused("pytorchjob", *words)
    assert line.startswith(f"cpudist: {start}")


def test_underscores_are_accepted(text: Callable[..., str]) -> None:
    assert text("pytorchjob", "--ranks_per_pod", "2") == text("pytorchjob", "--ranks-per-pod=2")
