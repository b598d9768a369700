"""Amounts as text for people."""

from __future__ import annotations

_UNITS = ("B", "KB", "MB", "GB", "TB")


def size(count: float) -> str:
    """Return a number of bytes, such as ``64 KB`` or ``1.5 GB``. The units are powers of 1024."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} {_UNITS[unit]}" if count >= 100 else f"{count:.3g} {_UNITS[unit]}"


def number_of(count: int, what: str) -> str:
    """Return a number with its noun, such as ``1 core`` or ``2 cores``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
