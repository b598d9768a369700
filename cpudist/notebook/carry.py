"""Pickle a notebook's function, its arguments and everything it uses for other processes, and compare the nodes' calls.

A notebook's definitions are in no file, so cloudpickle pickles them by value. An object that cannot be pickled, or
would have another meaning in another process, raises an error with the object's name in the notebook.

Two notebooks pickle the same cell to different bytes. So a digest covers the code of the notebook's functions and
classes, plain values, and the types and shapes of tensors. Of other objects it covers only the type, because they may
differ between nodes (a folder, a model whose weights DDP takes from rank 0).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import linecache
import os
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import cloudpickle

from cpudist.console import one_line
from cpudist.errors import UserError

MAIN = "__main__"
_DEPTH = 8  # levels to search for the object that cannot be pickled
_MOST = 1000  # search at most this many entries of a container

# Objects that belong to one process: (prefix of the module, classes, reason for the error).
_OF_THIS_PROCESS = (
    ("accelerate.", ("Accelerator", "PartialState", "AcceleratorState", "GradientState"), "it belongs to this process"),
    ("cpudist.", ("World",), "it describes this process"),
    ("torch.", ("ProcessGroup", "DistributedDataParallel"), "it belongs to this process"),
)


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Records the notebook's definitions that it pickles.

    Attributes:
        definitions: functions and classes of `__main__` by name.
        files: file names in the pickled code; a cell's file does not exist.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.definitions: dict[str, Any] = {}
        self.files: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        for module, names, reason in _OF_THIS_PROCESS:
            if kind.__name__ in names and kind.__module__.startswith(module):
                raise pickle.PicklingError(reason)
        if isinstance(obj, (types.FunctionType, type)) and obj.__module__ == MAIN:
            name: str = obj.__name__
            if vars(sys.modules[MAIN]).get(name) is obj:
                self.definitions[name] = obj
        if isinstance(obj, types.CodeType):  # cloudpickle 3.1.3 drops the file's name, which tracebacks need
            self.files.add(obj.co_filename)
            return _code_of_file, (obj.co_filename, *self.dispatch_table[types.CodeType](obj))
        return super().reducer_override(obj)


def _code_of_file(file: str, make: Callable[..., types.CodeType], parts: tuple[Any, ...]) -> types.CodeType:
    return make(*parts).replace(co_filename=file)


def pack(function: Callable[..., Any], args: Sequence[Any], file: BinaryIO) -> None:
    """Write a call to a file; `unpack` reads it.

    Raises:
        UserError: an object that the function uses cannot be serialised; the message names it.
    """
    pickler = _Pickler(file)
    try:
        pickler.dump((function, tuple(args)))
        pickler.dump(pickler.definitions)
        # Tracebacks show the source of cells, which is in no file.
        sources = {name: linecache.getlines(name) for name in pickler.files if not os.path.exists(name)}
        pickler.dump(sources)
    except Exception as error:  # noqa: BLE001 - objects raise what they like
        raise UserError(_explain(function, args, error)) from None


def unpack(file: BinaryIO) -> Callable[[], Any]:
    """Read a call that `pack` has written; return it as a function without arguments.

    The notebook's definitions become the `__main__` of this process. So it can pickle instances of the notebook's
    classes by reference, as the notebook does (to save a whole model, or to send an object to another rank).
    """
    unpickler = pickle.Unpickler(file)
    function, args = unpickler.load()
    main = types.ModuleType(MAIN)
    vars(main).update(unpickler.load())
    sys.modules[MAIN] = main
    for name, lines in unpickler.load().items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return functools.partial(function, *args)


def digest(value: Any) -> str:
    """Return the digest of a function or an argument; nodes compare their digests."""
    return hashlib.sha256(repr(_meaning(value, set())).encode()).hexdigest()


def _explain(function: Callable[..., Any], args: Sequence[Any], error: BaseException) -> str:
    """Return the error message, with the object's name in the notebook."""
    name, value, user = getattr(function, "__name__", "the function"), function, ""
    for index, argument in enumerate(args):
        if _refusal(argument) is not None:
            name, value = f"args[{index}]", argument
    for _ in range(_DEPTH):
        found = next(((part, inside) for part, inside in _parts(name, value) if _refusal(inside) is not None), None)
        if found is None:
            break
        user = name if isinstance(value, types.FunctionType) else user
        name, value = found
    reason = _refusal(value) or str(error)
    used = f", which {user} uses," if user else ""
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return (
        f"{name} (of type {kind}){used} cannot be carried over to the ranks' processes: {reason}; make it inside the"
        " function, or pass what it can be made from"
    )


def _refusal(value: Any) -> str | None:
    """Return why an object cannot be pickled; None where it can."""
    try:
        _Pickler(io.BytesIO()).dump(value)
    except Exception as error:  # noqa: BLE001 - objects raise what they like
        return one_line(str(error)) or type(error).__name__
    return None


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object contains or uses, each with its name."""
    if isinstance(value, types.MethodType):
        yield f"{name}.__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield from ((f"{name}.{part}", getattr(value, part)) for part in ("func", "args", "keywords"))
    elif isinstance(value, types.FunctionType):
        yield from _used_by(value)
    elif isinstance(value, (list, tuple)):
        yield from ((f"{name}[{index}]", part) for index, part in enumerate(value[:_MOST]))
    elif isinstance(value, dict):
        yield from ((f"{name}[{key!r}]", part) for key, part in list(value.items())[:_MOST])
    elif isinstance(value, type):
        yield from ((f"{name}.{key}", part) for key, part in vars(value).items() if callable(part))
    elif hasattr(value, "__dict__") and not isinstance(value, types.ModuleType):
        yield from ((f"{name}.{key}", part) for key, part in vars(value).items())


def _used_by(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield a function's closure variables, the global variables in its code, and its default values."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    yield from (("a default value", value) for value in function.__defaults__ or ())


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _meaning(value: Any, seen: set[int]) -> Any:
    """Return plain values that describe `value`; `seen` has the ids of objects already described."""
    kind = type(value).__qualname__
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
        return value
    if isinstance(value, (set, frozenset)):
        return kind, sorted(repr(_meaning(one, seen)) for one in value)
    if id(value) in seen:
        return kind
    seen.add(id(value))
    return kind, [_meaning(part, seen) for part in _meaningful(value)]


def _meaningful(value: Any) -> Iterable[Any]:
    if isinstance(value, types.CodeType):
        return value.co_code, value.co_names, value.co_consts
    if isinstance(value, types.FunctionType) and value.__module__ == MAIN:
        used = (part for _, part in _used_by(value) if isinstance(part, (types.FunctionType, type)))
        return value.__code__, value.__defaults__, value.__kwdefaults__, *used
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, type) and value.__module__ == MAIN:
        parts = (getattr(part, "__func__", getattr(part, "fget", part)) for part in vars(value).values())
        return *value.__bases__, *(part for part in parts if isinstance(part, types.FunctionType))
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, dict):
        return *value, *value.values()
    if dataclasses.is_dataclass(value):
        return (vars(value),)
    return type(value), *(str(getattr(value, name, "")) for name in ("__qualname__", "dtype", "shape"))
