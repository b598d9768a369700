"""Changes of the environment and of other packages that can be undone."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

_MISSING = object()


class Changes:
    """Changes that `undo` or the end of a `with` block reverts in reverse order."""

    def __init__(self) -> None:
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()

    def variable(self, name: str, value: str | None) -> None:
        """Set an environment variable; None removes it."""
        before = os.environ.get(name)
        _set(name, value)
        self.then(lambda: _set(name, before))

    def default_variable(self, name: str, value: str) -> None:
        if name not in os.environ:
            self.variable(name, value)

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Record all changes that any code makes to the environment within the block; `undo` reverts them."""
        before = dict(os.environ)
        try:
            yield
        finally:
            for name in before.keys() | os.environ.keys():
                if os.environ.get(name) != before.get(name):
                    self.then(lambda name=name: _set(name, before.get(name)))  # type: ignore[misc]

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        # Not getattr: an inherited attribute is restored by deleting this one.
        before = vars(owner).get(name, _MISSING) if hasattr(owner, "__dict__") else getattr(owner, name)
        self.then(lambda: delattr(owner, name) if before is _MISSING else setattr(owner, name, before))
        setattr(owner, name, value)

    def entry(self, mapping: dict[str, Any], key: str, value: Any) -> None:
        """Add an entry whose key the dictionary does not have."""
        mapping[key] = value
        self.then(lambda: mapping.pop(key, None))

    def ignored_warnings(self, message: str = "", category: type[Warning] = Warning) -> None:
        """Ignore warnings whose text begins with the regular expression `message`.

        `undo` removes only this filter; filters that a script has added meanwhile stay.
        """
        before = list(warnings.filters)
        warnings.filterwarnings("ignore", message, category)
        added = warnings.filters[0]
        if added not in before:
            self.then(lambda: _remove_filter(added))

    def then(self, action: Callable[[], object]) -> None:
        self._undo.callback(action)

    def undo(self) -> None:
        """Undo all changes; an error in one does not prevent the others."""
        self._undo.close()


@contextmanager
def replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """Set attributes of a class, a module or any other object while the block runs."""
    with Changes() as changes:
        for name, value in attributes.items():
            changes.attribute(owner, name, value)
        yield


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _remove_filter(added: Any) -> None:
    filters: Any = warnings.filters  # a list, although typeshed declares a sequence
    if added in filters:
        filters.remove(added)
