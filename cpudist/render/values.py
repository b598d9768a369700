"""Types of options, for argparse: what users may write, and the value that it becomes.

A text that is not accepted becomes an `Invalid`, so that all of them are reported at once; argparse by itself stops at
the first one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MEBIBYTE = 1 << 20

_WORD = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_WORD}(\.{_WORD})*"  # RFC 1123
_REPOSITORY = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_TAG = r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
_UNITS = {
    **{unit: 1000**power for power, unit in enumerate(("", "k", "M", "G", "T"))},
    **{unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti"), 1)},
}
_TIME = r"(?:(?P<days>\d+)-)?(?P<hours>\d{1,3}):(?P<minutes>[0-5]\d):(?P<seconds>[0-5]\d)"
# torchrun, Hydra or Slurm sets these, to another value for each rank.
_OF_THE_LAUNCHER = r"(?:RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|(?:PET|PMI|SLURM)_[^=]*)"

Type = Callable[[str], Any]  # as argparse has it


@dataclass(frozen=True)
class Invalid:
    """A text that an option does not accept, and why."""

    text: str
    reason: str


def _matching(pattern: str, reason: str, convert: Callable[[re.Match[str]], Any] = lambda match: match[0]) -> Type:
    """Return the type of an option whose text must match a pattern.

    Args:
        pattern: of the whole text.
        reason: why a text is not accepted.
        convert: returns the option's value; None refuses the text too.
    """

    def read(text: str) -> Any:
        match = re.fullmatch(pattern, text)
        value = convert(match) if match else None
        return Invalid(text, reason) if value is None else value

    return read


def one_of(choices: tuple[str, ...], hint: str = "") -> Type:
    """Return the type of an option that takes one of `choices`; `hint` follows in its error."""
    return _matching("|".join(map(re.escape, choices)), f"not one of {', '.join(choices)}{hint}")


def _number(match: re.Match[str]) -> int:
    return int(match[0])


def _mebibytes(match: re.Match[str]) -> int | None:
    return int(float(match[1]) * _UNITS[match[2] or ""] / MEBIBYTE) * MEBIBYTE or None


def _seconds(match: re.Match[str]) -> int | None:
    hours = int(match["days"] or 0) * 24 + int(match["hours"])
    seconds = (hours * 60 + int(match["minutes"])) * 60 + int(match["seconds"])
    return seconds if seconds >= 60 else None


_POSITIVE = r"(?=.*[1-9])[0-9]{1,9}"
count = _matching(_POSITIVE, "not a whole number of at least 1", _number)
count_from_zero = _matching(r"[0-9]{1,9}", "not a whole number of at least 0", _number)
# Kubernetes reserves no CPUs for a pod that asks for parts of one.
cpus = _matching(_POSITIVE, "not a whole number of CPUs, such as 12", _number)
# In bytes, rounded down to whole mebibytes.
memory = _matching(
    r"([0-9]+(?:\.[0-9]+)?)(Ki|Mi|Gi|Ti|k|M|G|T)?",
    "not an amount of memory of at least 1Mi, such as 16Gi or 500Mi",
    _mebibytes,
)
# In seconds.
time_limit = _matching(_TIME, "not a time of at least 00:01:00, as HH:MM:SS or D-HH:MM:SS", _seconds)

# RFC 1035. Pods are called NAME-worker-12 and TrainJob's NAME-node-0-12-abcde, and a host name has 63 characters.
name = _matching(
    r"(?=.{1,45}\Z)[a-z]([-a-z0-9]*[a-z0-9])?",
    "DNS refuses this name; use up to 45 of a-z, 0-9 and -, begin with a letter and do not end with -",
)
namespace = _matching(rf"(?=.{{1,63}}\Z){_WORD}", "not a namespace; use up to 63 of a-z, 0-9 and -")
image = _matching(
    rf"(?:[a-z0-9.-]+(?::[0-9]+)?/)?{_REPOSITORY}(?:/{_REPOSITORY})*{_TAG}",
    "not the name of an image, such as team/cpudist:1 (small letters, no blanks)",
)
claim = _matching(_SUBDOMAIN, "not the name of a PersistentVolumeClaim; `kubectl get pvc` lists them")
mount_path = _matching(r"/[^:]+", "not a folder to mount at, such as /data (absolute, without a colon)")
# Name and value of an environment variable.
variable = _matching(
    rf"(?!{_OF_THE_LAUNCHER}=)(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<value>(?s:.*))",
    "not NAME=VALUE, or a variable that the launcher sets, such as RANK; leave it out",
    lambda match: (match["name"], match["value"]),
)
# A job on Slurm; its name is part of the name of its output file.
job_name = _matching(r"[A-Za-z0-9_.-]+", "not a name of letters, digits, _, . and -")
word = _matching(r"[\w.,@+-]+", "not one word")  # a partition, an account
path = _matching(r"[^\n]+", "not the name of a file")


def quantity(amount: int) -> str:
    """Return bytes in Kubernetes' notation, in whole units."""
    mebibytes = amount // MEBIBYTE
    return f"{mebibytes // 1024}Gi" if mebibytes % 1024 == 0 else f"{mebibytes}Mi"
