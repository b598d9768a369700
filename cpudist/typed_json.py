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
    """Return a JSON value as a `kind`, without fields that it does not have; ValueError for another type or content."""
    # Without `builtin_types` a text would be taken as base64 for bytes, which are pickles here.
    return msgspec.convert(value, kind, str_keys=True, builtin_types=(bytes,))
