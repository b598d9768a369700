"""Pickle a notebook's function, its arguments and everything it uses for other processes.

A notebook's definitions are in no file, so cloudpickle pickles them by value. An object that cannot be pickled, or
would have another meaning in another process, raises an error with the object's name in the notebook.
"""

import functools
import inspect
import io
import linecache
import os
import pickle
import sys
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

import cloudpickle

from cpudist.console import one_line
from cpudist.errors import UserError
from cpudist.notebook.cell import name_of

MAIN = "__main__"
_DEPTH = 8  # Search at most so many functions, each used by the one before, for the object that cannot be pickled.

_OF_THIS_PROCESS = (  # Objects that belong to one process: (prefix of the module, classes, reason for the error).
    ("accelerate.", ("Accelerator", "PartialState", "AcceleratorState", "GradientState"), "it belongs to this process"),
    ("cpudist.", ("World",), "it describes this process"),
    ("torch.", ("ProcessGroup", "DistributedDataParallel"), "it belongs to this process"),
)


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Records the notebook's definitions that it pickles."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.definitions: dict[str, Any] = {}  # functions and classes of `__main__` by name
        self.files: set[str] = set()  # file names in the pickled code; a cell's file does not exist

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
            return _code_of_file, (name_of(obj.co_filename), *self.dispatch_table[types.CodeType](obj))
        return super().reducer_override(obj)


def _code_of_file(file: str, make: Callable[..., types.CodeType], parts: tuple[Any, ...]) -> types.CodeType:
    return make(*parts).replace(co_filename=file)


def pack(function: Callable[..., Any], args: Sequence[Any], file: BinaryIO) -> None:
    """Write a call to a file, for `unpack`; a UserError names what cannot be pickled."""
    pickler = _Pickler(file)
    try:
        pickler.dump((function, tuple(args)))
        pickler.dump(pickler.definitions)
        # Tracebacks show the source of cells, which is in no file.
        sources = {name_of(file): linecache.getlines(file) for file in pickler.files if not os.path.exists(file)}
        pickler.dump(sources)
    except Exception as error:  # noqa: BLE001 - objects raise what they like
        raise UserError(_explain(function, args, error)) from None


def unpack(file: BinaryIO) -> Callable[[], Any]:
    """Read a call that `pack` has written; return it as a function without arguments.

    The notebook's definitions become the `__main__` of this process. So this process can pickle instances of the
    notebook's classes by reference, as the notebook does (to save a whole model, or to send it to another rank).
    """
    unpickler = pickle.Unpickler(file)
    function, args = unpickler.load()
    main = types.ModuleType(MAIN)
    vars(main).update(unpickler.load())
    sys.modules[MAIN] = main
    for name, lines in unpickler.load().items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return functools.partial(function, *args)


def _explain(function: Callable[..., Any], args: Sequence[Any], error: BaseException) -> str:
    """Return the error message, with the name in the notebook of the object that cannot be pickled."""
    name, value, user = getattr(function, "__name__", "the function"), function, ""
    for index, argument in enumerate(args):
        if _refusal(argument) is not None:
            name, value = f"args[{index}]", argument
    for _ in range(_DEPTH):
        used = _used_by(value) if isinstance(value, types.FunctionType) else {}
        found = next((item for item in used.items() if _refusal(item[1]) is not None), None)
        if found is None:
            break
        user, (name, value) = name, found
    reason = _refusal(value) or str(error)
    used_by = f", which {user} uses," if user else ""
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    remedy = "make it inside the function, or pass what it can be made from"
    return f"{name} (of type {kind}){used_by} cannot be serialised for the ranks: {reason}; {remedy}"


def _refusal(value: Any) -> str | None:
    try:
        _Pickler(io.BytesIO()).dump(value)
    except Exception as error:  # noqa: BLE001 - objects raise what they like
        return one_line(str(error)) or type(error).__name__
    return None


def _used_by(function: types.FunctionType) -> dict[str, Any]:
    """Return a function's closure variables, and the global variables in its code and in functions inside it."""
    names, variables = set[str](), function.__globals__
    codes = [function.__code__]
    for code in codes:
        names.update(code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    used = {name: variables[name] for name in names & variables.keys()}
    with suppress(ValueError):  # a closure variable is not assigned yet
        used |= inspect.getclosurevars(function).nonlocals
    return used
