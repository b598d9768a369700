"""Options that a backend declares: keywords of `cpudist.init`, and options of `cpudist-train`."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cpudist.errors import UserError


@dataclass(frozen=True)
class Option:
    """An option of one backend.

    Attributes:
        name: the keyword, such as "show_sharding"; the command line spells it ``--show-sharding``.
        help: one line for ``cpudist-train --help``.
        type: converts the text on the command line to the value; `bool`: a flag without a value.
        default: the value if the user gives none; False for a flag.
        choices: the values that are allowed; empty allows all.
        metavar: the value's name in the help.
        needs: name of another option that must be given too; empty: none.
    """

    name: str
    help: str
    type: Callable[[str], Any] = str
    default: Any = None
    choices: tuple[Any, ...] = ()
    metavar: str | None = None
    needs: str = ""

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


def with_defaults(backend: str, options: Iterable[Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a value for each of a backend's `options`: the user's, or the default if it is missing or None.

    Raises:
        UserError: the backend has no such options, or a value is not allowed.
    """
    known = {option.name: option for option in options}
    values = {name: value for name, value in values.items() if value is not None}
    if unknown := [Option(name, "").flag for name in values if name not in known]:
        raise UserError(f"the backend {backend} takes no {', '.join(unknown)}; leave it out, or name another backend")
    for name, value in values.items():
        choices = known[name].choices
        needed = known[name].needs
        if needed and value and not values.get(needed):
            raise UserError(f"{known[name].flag} has no effect without {known[needed].flag}; give that, too")
        if choices and value not in (*choices, known[name].default):
            allowed = ", ".join(map(str, choices))
            raise UserError(f"{known[name].flag} {value} is not known; give the backend {backend} one of {allowed}")
    return {**{name: option.default for name, option in known.items()}, **values}
