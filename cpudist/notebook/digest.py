"""Digests of functions and arguments, by which the cells of several nodes find out that they differ.

Each notebook pickles the same cell to other bytes. So a digest is made of the code of the notebook's functions and
classes, of plain values, and of the types and shapes of tensors. Of other objects only the type counts: each node may
have another one (a folder, a model whose weights DDP takes from rank 0).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from types import CodeType, FunctionType
from typing import Any

from cpudist.notebook.carry import MAIN, used_by


def digest(value: Any) -> str:
    """Return the digest of a function or an argument."""
    return hashlib.sha256(repr(_meaning(value, set())).encode()).hexdigest()


def _meaning(value: Any, seen: set[int]) -> Any:
    """Return plain values that stand for `value`; `seen` has the ids of the objects that are described already."""
    kind = type(value).__qualname__
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
        return value
    if isinstance(value, (set, frozenset)):
        return kind, sorted(repr(_meaning(one, seen)) for one in value)
    if id(value) in seen:
        return kind
    seen.add(id(value))
    return kind, [_meaning(part, seen) for part in _parts(value)]


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, CodeType):
        return value.co_code, value.co_names, value.co_consts
    if isinstance(value, FunctionType) and value.__module__ == MAIN:
        used = (part for _, part in used_by(value) if isinstance(part, (FunctionType, type)))
        return value.__code__, value.__defaults__, value.__kwdefaults__, *used
    if isinstance(value, type) and value.__module__ == MAIN:
        return (part for part in vars(value).values() if isinstance(part, FunctionType))
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, dict):
        return *value, *value.values()
    if dataclasses.is_dataclass(value):
        return (vars(value),)
    return str(getattr(value, "__qualname__", "")), str(getattr(value, "dtype", "")), str(getattr(value, "shape", ""))
