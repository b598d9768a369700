"""YAML whose computed values have their reason in a comment above them."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_WIDTH = 110
# Text that is a string in every version of YAML. Kubernetes reads YAML 1.1, where `on`, `1_0` and `1:30` are not.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_NO_TEXT = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
_STEP = 2


@dataclass(frozen=True)
class Noted:
    """A value of a mapping, and the comment above it."""

    value: Any
    why: str


class LiteralBlock(str):
    """A text of several lines, written as a literal block."""


def write(documents: Sequence[Mapping[str, Any]], heading: str) -> str:
    """Return the documents as one YAML text that begins with `heading` as a comment."""
    from ruamel.yaml import YAML  # late, here and below: no other command needs it

    yaml = YAML()
    yaml.width = 4096  # do not break the words of a command
    text = io.StringIO()
    yaml.dump_all([_node(document, 0) for document in documents], text)
    return "".join(f"# {line}".rstrip() + "\n" for line in heading.splitlines()) + text.getvalue()


def _node(value: Any, column: int) -> Any:
    """Convert `value` to ruamel.yaml's types, which have to be told the column of each comment."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

    if isinstance(value, Mapping):
        mapping = CommentedMap()
        for key, content in value.items():
            inner = content.value if isinstance(content, Noted) else content
            mapping[key] = _node(inner, column if isinstance(inner, list) else column + _STEP)
            if isinstance(content, Noted):
                why = "\n".join(textwrap.wrap(content.why, max(_WIDTH - column, 40), break_on_hyphens=False))
                mapping.yaml_set_comment_before_after_key(key, before=why, indent=column)
        return mapping
    if isinstance(value, list):
        return CommentedSeq([_node(item, column + _STEP) for item in value])
    if isinstance(value, LiteralBlock):
        return LiteralScalarString(value)
    plain = not isinstance(value, str) or (_PLAIN.fullmatch(value) and value.lower() not in _NO_TEXT)
    return value if plain else DoubleQuotedScalarString(value)
