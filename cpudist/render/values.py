"""What users may write for a value, and what it then is.

Each function raises ValueError with what is wrong and what would be right; option.py puts the option's name before it.
"""

from __future__ import annotations

import math
import re
from typing import Any

MEBIBYTE = 1 << 20

_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035; a Service takes no other name
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")  # RFC 1123
# Pods are called NAME-worker-12 and TrainJob's NAME-node-0-12-abcde, and a host's name has 63 characters at most.
_LONGEST_NAME = 45
_LONGEST_LABEL = 63
_REPOSITORY = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
# A registry's host is told from a folder by a dot or a port.
_REGISTRY = r"(?:(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+)(?::[0-9]+)?|[A-Za-z0-9-]+:[0-9]+)"
_IMAGE = re.compile(
    rf"(?:{_REGISTRY}/)?{_REPOSITORY}(?:/{_REPOSITORY})*(?::[\w][\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?",
    re.ASCII,
)
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(Ki|Mi|Gi|Ti|k|M|G|T)?")
_UNITS = {
    **dict(zip(("", "k", "M", "G", "T"), (1000**power for power in range(5)), strict=True)),
    **dict(zip(("Ki", "Mi", "Gi", "Ti"), (1024**power for power in range(1, 5)), strict=True)),
}
_LABEL_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)"
_LABEL_KEY = rf"(?:{_SUBDOMAIN.pattern}/)?{_LABEL_VALUE}"
_SELECTOR = re.compile(rf"(?P<key>{_LABEL_KEY})=(?P<value>{_LABEL_VALUE}?)")
_TOLERATION = re.compile(
    rf"(?P<key>{_LABEL_KEY})(?:=(?P<value>{_LABEL_VALUE}?))?(?::(?P<effect>NoSchedule|PreferNoSchedule|NoExecute))?"
)
_VARIABLE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<value>.*)", re.DOTALL)
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<hours>\d{1,3}):(?P<minutes>[0-5]\d):(?P<seconds>[0-5]\d)")
# The launcher inside the pods or Slurm says these, differently to each rank.
_OF_THE_LAUNCHER = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|(PET|PMI|SLURM)_.*)"
)


def name(text: str) -> str:
    """A job's name."""
    if not _LABEL.fullmatch(text):
        raise ValueError("DNS refuses this name; use a-z, 0-9 and -, begin with a letter and do not end with -")
    if len(text) > _LONGEST_NAME:
        raise ValueError(
            f"{len(text)} characters are too many, since pods' names are longer still; use {_LONGEST_NAME}"
        )
    return text


def namespace(text: str) -> str:
    """A namespace's name."""
    if not _SUBDOMAIN.fullmatch(text) or "." in text or len(text) > _LONGEST_LABEL:
        raise ValueError(f"not a namespace; use up to {_LONGEST_LABEL} of a-z, 0-9 and -")
    return text


def image(text: str) -> str:
    """A container image's name."""
    if not _IMAGE.fullmatch(text):
        raise ValueError("not an image's name, such as team/cpudist:1 (small letters, no blanks)")
    return text


def count(text: str) -> int:
    """A number from 1 on."""
    if not _is_number(text) or int(text) < 1:
        raise ValueError("not a number from 1 on")
    return int(text)


def count_or_none(text: str) -> int:
    """A number from 0 on."""
    if not _is_number(text):
        raise ValueError("not a number from 0 on")
    return int(text)


def cpus(text: str) -> int:
    """Whole CPUs: Kubernetes gives CPUs of its own to no pod that asks for parts of one."""
    if not _is_number(text) or int(text) < 1:
        raise ValueError("not a whole number of CPUs, such as 12")
    return int(text)


def memory(text: str) -> int:
    """An amount of memory; whole mebibytes, in bytes."""
    match = _QUANTITY.fullmatch(text)
    mebibytes = math.floor(float(match[1]) * _UNITS[match[2] or ""] / MEBIBYTE) if match else 0
    if mebibytes < 1:
        raise ValueError("not an amount of memory from 1Mi on, such as 16Gi or 500Mi")
    return mebibytes * MEBIBYTE


def claim(text: str) -> str:
    """The name of a PersistentVolumeClaim."""
    if not _SUBDOMAIN.fullmatch(text):
        raise ValueError("not the name of a PersistentVolumeClaim; `kubectl get pvc` lists them")
    return text


def mount_path(text: str) -> str:
    """Where a volume is mounted."""
    if not text.startswith("/") or ":" in text or text == "/":
        raise ValueError("not a folder to mount at, such as /data (absolute, without a colon)")
    return text


def selector(text: str) -> tuple[str, str]:
    """A label that nodes must have."""
    match = _SELECTOR.fullmatch(text)
    if match is None:
        raise ValueError("not KEY=VALUE; `kubectl get nodes --show-labels` lists them")
    return match["key"], match["value"]


def toleration(text: str) -> dict[str, Any]:
    """A taint of nodes that pods accept, as `kubectl taint` writes it; without a value any, without an effect all."""
    match = _TOLERATION.fullmatch(text)
    if match is None:
        raise ValueError("not KEY, KEY:EFFECT or KEY=VALUE:EFFECT with NoSchedule, PreferNoSchedule or NoExecute")
    found: dict[str, Any] = {"key": match["key"], "operator": "Exists" if match["value"] is None else "Equal"}
    if match["value"] is not None:
        found["value"] = match["value"]
    if match["effect"]:
        found["effect"] = match["effect"]
    return found


def variable(text: str) -> tuple[str, str]:
    """An environment variable of all ranks."""
    match = _VARIABLE.fullmatch(text)
    if match is None:
        raise ValueError("not NAME=VALUE")
    if _OF_THE_LAUNCHER.fullmatch(match["name"]):
        raise ValueError(f"{match['name']} is for the launcher to set; leave it out")
    return match["name"], match["value"]


def time_limit(text: str) -> int:
    """A time limit as Slurm writes it, in seconds."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError("not a time as HH:MM:SS or D-HH:MM:SS")
    hours = int(match["days"] or 0) * 24 + int(match["hours"])
    seconds = (hours * 60 + int(match["minutes"])) * 60 + int(match["seconds"])
    if seconds < 60:
        raise ValueError("less than Slurm's smallest limit, 00:01:00")
    return seconds


def job_name(text: str) -> str:
    """A job's name for Slurm: a part of its output's file name."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", text):
        raise ValueError("not a name of letters, digits, _, . and -")
    return text


def word(text: str) -> str:
    """What is one word for Slurm: a partition, an account."""
    if not re.fullmatch(r"[\w.,@+-]+", text):
        raise ValueError("not one word")
    return text


def path(text: str) -> str:
    """A file that must not break a line."""
    if not text or "\n" in text:
        raise ValueError("not a file's name")
    return text


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 9


def written(amount: int) -> str:
    """Bytes as Kubernetes writes them, without a fraction."""
    mebibytes = amount // MEBIBYTE
    return f"{mebibytes // 1024}Gi" if mebibytes % 1024 == 0 else f"{mebibytes}Mi"
