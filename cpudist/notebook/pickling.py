"""Pickle a notebook's function, its arguments and everything it uses for other processes.

A notebook's definitions are in no file, so cloudpickle pickles them by value. An object that cannot be pickled, or
would have another meaning in another process, raises an error with the object's name in the notebook.

Nodes compare their calls. Two notebooks pickle the same cell to different bytes, so `pack` returns a digest of the
notebook's code. The `digest` of an argument covers plain values and shapes of tensors. Of other objects it covers only
the type, because they may differ between nodes (a folder, a model whose weights DDP takes from rank 0).
"""

import dataclasses
import functools
import hashlib
import io
import linecache
import os
import pickle
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import cloudpickle

from cpudist.console import one_line
from cpudist.errors import UserError
from cpudist.notebook.cell import name_of

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
        code: what nodes compare of the pickled functions.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.definitions: dict[str, Any] = {}
        self.files: set[str] = set()
        self.code: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        for module, names, reason in _OF_THIS_PROCESS:
            if kind.__name__ in names and kind.__module__.startswith(module):
                raise pickle.PicklingError(reason)
        if isinstance(obj, (types.FunctionType, type)) and obj.__module__ == MAIN:
            name: str = obj.__name__
            if vars(sys.modules[MAIN]).get(name) is obj:
                self.definitions[name] = obj
        if isinstance(obj, types.FunctionType) and obj.__module__ == MAIN:
            self.code.add(_described((obj.__defaults__, obj.__kwdefaults__)))
        if isinstance(obj, types.CodeType):  # cloudpickle 3.1.3 drops the file's name, which tracebacks need
            self.files.add(obj.co_filename)
            self.code.add(_described((obj.co_code, obj.co_names, obj.co_consts)))
            return _code_of_file, (name_of(obj.co_filename), *self.dispatch_table[types.CodeType](obj))
        return super().reducer_override(obj)


def _code_of_file(file: str, make: Callable[..., types.CodeType], parts: tuple[Any, ...]) -> types.CodeType:
    return make(*parts).replace(co_filename=file)


def pack(function: Callable[..., Any], args: Sequence[Any], file: BinaryIO) -> str:
    """Write a call to a file, for `unpack`, and return its digest; a UserError names what cannot be pickled."""
    pickler = _Pickler(file)
    try:
        pickler.dump((function, tuple(args)))
        pickler.dump(pickler.definitions)
        # Tracebacks show the source of cells, which is in no file.
        sources = {name_of(file): linecache.getlines(file) for file in pickler.files if not os.path.exists(file)}
        pickler.dump(sources)
    except Exception as error:  # noqa: BLE001 - objects raise what they like
        raise UserError(_explain(function, args, error)) from None
    return digest(pickler.code)


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
    """Return a digest of a value, by which nodes compare their calls."""
    return hashlib.sha256(_described(value).encode()).hexdigest()


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
        f"{name} (of type {kind}){used} cannot be serialised for the ranks: {reason}; make it inside the"
        " function, or pass what it can be made from"
    )


def _refusal(value: Any) -> str | None:
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


def _described(value: Any) -> str:
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
        return repr(value)
    kind = f"{type(value).__qualname__} {getattr(value, 'dtype', '')} {getattr(value, 'shape', '')}"
    if isinstance(value, functools.partial):
        value = value.args, value.keywords
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    if isinstance(value, dict):
        value = [*value, *value.values()]
    parts = [_described(part) for part in value] if isinstance(value, (list, tuple, set, frozenset)) else []
    return f"{kind} {sorted(parts) if isinstance(value, (set, frozenset)) else parts}"
