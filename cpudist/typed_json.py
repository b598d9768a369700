"""Read JSON that another process has printed.

The process may run another version of cpudist. Its output may be cut short, or begin with a login shell's greeting.
msgspec checks the values against a type, such as a dataclass, so that other code can rely on them::

    facts = typed_json.read(Facts, typed_json.last_line(output))
"""

import json
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def last_line(output: str) -> Any:
    """Return the JSON in the last line of `output`, or raise ValueError if it is not JSON."""
    try:
        return json.loads(output.strip().rpartition("\n")[2])
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def read(kind: type[T], value: Any) -> T:
    """Return a JSON value as a `kind`; fields that `kind` does not have are ignored.

    Raises:
        ValueError: the value is of another type, or a field is missing or of another type.
    """
    # Without `builtin_types` a text would be taken as base64 for bytes, which are pickles here.
    return msgspec.convert(value, kind, str_keys=True, builtin_types=(bytes,))


def taken(fields: Any, name: str, kind: type[T]) -> tuple[T, dict[str, Any]]:
    """Return one field of a JSON object, and its other fields, or raise ValueError as `read` does."""
    others = dict(read(dict[str, Any], fields))
    return read(kind, others.pop(name, None)), others
