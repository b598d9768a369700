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
    """Convert a JSON value to the type `kind`, without unknown fields; raise ValueError if it does not fit."""
    # Without `builtin_types`, msgspec would decode a string as base64 where a field has bytes, which are pickles here.
    return msgspec.convert(value, kind, str_keys=True, builtin_types=(bytes,))
