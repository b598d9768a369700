"""Pretrained models, tokenizers and the like: from a folder or a hub name, or one line that says why not."""

from __future__ import annotations

from typing import Any

from cpudist.errors import UserError


def load(auto_class: Any, name: str, **kwargs: Any) -> Any:
    """``auto_class.from_pretrained(name)``; `UserError` with the reason where that fails."""
    try:
        return auto_class.from_pretrained(name, **kwargs)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"cannot load {name}: {reason}") from error
