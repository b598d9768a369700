"""Read JSON that another process has printed.

The process may run another version of cpudist. Its output may be cut short, or begin with a login shell's greeting.
Values are checked against the types of a dataclass, so that other code can rely on them::

    facts = answers.read(Facts, answers.last_line(output))
"""

import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")

_hints = cache(get_type_hints)  # a report reads the statuses of all ranks
_LARGEST_INTEGER = 1 << 63  # arithmetic with floats fails on larger integers


def last_line(output: str) -> Any:
    """Return the JSON in the last line of `output`.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return json.loads(output.strip().rpartition("\n")[2])
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def read(kind: type[T], fields: Any) -> T:
    """Return an object of the dataclass `kind` with these fields.

    Raises:
        ValueError: `fields` is not a JSON object, or a field is missing, unknown or of another type.
    """
    try:
        hints = _hints(kind)  # type: ignore[arg-type]
        return kind(**{name: _read_value(hints[name], value) for name, value in fields.items()})
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"this is no {kind.__name__}: {error}") from None


def taken(fields: Any, name: str, kind: type[T]) -> tuple[T, dict[str, Any]]:
    """Return one field of a JSON object, and its other fields.

    Raises:
        ValueError: the field is missing or of another type.
    """
    if not isinstance(fields, dict) or name not in fields:
        raise ValueError(f"there is no {name}")
    return _read_value(kind, fields[name]), {other: value for other, value in fields.items() if other != name}


def fits(hint: Any, value: Any) -> bool:
    """Return whether a JSON value has the type `hint`."""
    try:
        _read_value(hint, value)
    except ValueError:
        return False
    return True


def _read_value(hint: Any, value: Any) -> Any:
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if is_dataclass(hint):
        return read(hint, value)  # type: ignore[arg-type]
    if kind is Any or (kind is Literal and value in arguments):
        return value
    if NoneType in arguments:  # an optional value
        return None if value is None else _read_value(arguments[0], value)
    written: Any = {float: (float, int), tuple: list, Mapping: dict, Literal: ()}.get(kind, kind)
    if not isinstance(value, written) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{value!r:.80} is no {hint}")
    if isinstance(value, int) and abs(value) >= _LARGEST_INTEGER:
        raise ValueError("the number is too large")
    if kind is tuple:
        hints = [arguments[0]] * len(value) if arguments[-1] is ... else arguments
        return tuple(_read_value(one, part) for one, part in zip(hints, value, strict=True))
    if kind is list:
        return [_read_value(arguments[0], part) for part in value]
    if kind in (dict, Mapping):
        return {arguments[0](name): _read_value(arguments[1], part) for name, part in value.items()}
    return float(value) if kind is float else value
