"""Packages that only some recipes need: there, or one line that says how to get them."""

from __future__ import annotations

import importlib

from cpudist.errors import UserError


def need(module: str, package: str, what: str) -> None:
    """`UserError` unless `module`, which the PyPI project `package` brings, can be imported for `what`."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise UserError(f'{what} needs {package}; pip install "cpudist[recipes]" brings it') from error
