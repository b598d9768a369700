"""A kind of manifest, its options as users type them, and the reading of all: every mistake is found at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpudist.errors import UserError


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        flag: such as --cpus.
        metavar: what its value is called in the help.
        read: from text to value; raises ValueError.
        help: one line.
        default: as text; None: the option has no value then.
        several: whether it may be given more than once; its value is a list.
    """

    flag: str
    metavar: str
    read: Callable[[str], Any]
    help: str
    default: str | None = None
    several: bool = False

    @property
    def name(self) -> str:
        """Of the value: --ranks-per-pod gives ranks_per_pod."""
        return self.flag[2:].replace("-", "_")


# Looks at values together; one that could not be read is not there. Each line is one contradiction.
Check = Callable[[Mapping[str, Any]], Sequence[str]]


@dataclass(frozen=True)
class Kind:
    """One kind of manifest.

    Attributes:
        name: as in `cpudist render NAME`.
        summary: one line.
        options: what users may say.
        check: what the values contradict each other in.
        render: from cpudist-train's arguments and the values to the text.
    """

    name: str
    summary: str
    options: Sequence[Option]
    check: Check
    render: Callable[[list[str], Mapping[str, Any]], str]


def read_all(kind: Kind, given: Mapping[str, Any], problems: Sequence[str] = ()) -> dict[str, Any]:
    """The value of each option, by its name.

    Args:
        kind: what is to be rendered.
        given: what the user has typed, by name: text, a list of texts, or None.
        problems: mistakes that were found elsewhere.

    Raises:
        UserError: with a line for each mistake.
    """
    values: dict[str, Any] = {}
    problems = list(problems)
    for option in kind.options:
        typed = given.get(option.name)
        texts = typed if isinstance(typed, list) else [option.default if typed is None else typed]
        found = []
        for text in texts:
            try:
                found.append(None if text is None else option.read(text))
            except ValueError as error:
                problems.append(f"{option.flag} {text!r}: {error}")
        if len(found) == len(texts):
            values[option.name] = [value for value in found if value is not None] if option.several else found[0]
    problems += kind.check(values)
    if problems:
        raise UserError("\n".join(problems))
    return values
