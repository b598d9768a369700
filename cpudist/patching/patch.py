"""Replace parts of other packages; each patch has a reason, and checks that its target has the expected form.

A folder that changes another package has a table, `PATCHES`, which docs/patches.md shows::

    apply(PATCHES, self, job.changes)
"""

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cpudist.errors import UserError
from cpudist.patching.undo import Changes


@dataclass(frozen=True)
class Patch:
    """A part of another package that cpudist replaces or relies on."""

    target: str  # "module:attribute" or "module:Class.attribute"
    why: str  # the reason, as docs/patches.md shows it
    # Takes the original and the context, and returns the replacement or the changed original. None: only
    # check that the target exists; code beside the table uses it, or replaces it for a while.
    function: Callable[[Any, Any], Any] | None = None
    # The names of the original's parameters; "..." allows any others. None: do not check them.
    parameters: str | None = None
    attributes: str = ""  # names that the original must have
    until: str = ""  # when the patch can go, with the upstream issue; empty: nothing is planned upstream

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    def find(self) -> tuple[Any, str, Any] | None:
        """Return the target's owner, the target's name there, and the target.

        None if it is missing, or has other parameters or attributes than this patch was written for.
        """
        *classes, name = self.target.partition(":")[2].split(".")
        owner: Any = importlib.import_module(self.module)
        for part in classes:
            owner = getattr(owner, part, None)
        target = getattr(owner, name, None)
        return (owner, name, target) if target is not None and self._fits(target) else None

    def _fits(self, target: Any) -> bool:
        if not all(hasattr(target, name) for name in self.attributes.split(", ") if name):
            return False
        if self.parameters is None:
            return True
        found = ", ".join(inspect.signature(target).parameters)
        return found == self.parameters or (self.parameters[-3:] == "..." and found.startswith(self.parameters[:-3]))


def apply(patches: Iterable[Patch], context: Any, changes: Changes) -> None:
    """Apply `patches` in their order, until `changes` are undone.

    A function of a module is also replaced in the modules that have imported it by name. A patch that does not fit the
    installed version raises UserError.
    """
    functions = {}  # id of a module's function (`changes` keeps it alive) -> its replacement
    for patch in patches:
        found = patch.find()
        if found is None:
            package: Any = sys.modules[patch.module.partition(".")[0]]
            version = f"{package.__name__} {package.__version__}"
            raise UserError(f"cpudist does not know {version}, whose {patch.target} has changed; install an older one")
        owner, name, original = found
        if patch.function is None or (replacement := patch.function(original, context)) is original:
            continue
        changes.attribute(owner, name, replacement)
        if inspect.ismodule(owner) and inspect.isroutine(original):
            functions[id(original)] = replacement
    if functions:
        _replace_imported(functions, changes)


def _replace_imported(functions: Mapping[int, Any], changes: Changes) -> None:
    """Replace functions, by their ids, in the modules that have imported them by name."""
    for module in list(sys.modules.values()):
        for name, value in list(vars(module).items()) if inspect.ismodule(module) else ():
            if id(value) in functions:
                changes.attribute(module, name, functions[id(value)])


def adjusted(
    original: Callable[..., None],
    before: Callable[[dict[str, Any]], object],
    after: Callable[[Any], object] = lambda _first: None,
) -> Callable[..., None]:
    """Return a function that calls `before`, `original` (such as an `__init__`) and `after`.

    `before` gets the arguments by name and may change them; `after` gets the first one, an `__init__`'s new object.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> None:
        given = signature.bind_partial(*args, **kwargs)
        before(given.arguments)
        original(*given.args, **given.kwargs)
        after(given.args[0])

    return call
