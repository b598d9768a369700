"""The notebook's IPython shell, and the names of its cells."""

import sys
from typing import Any


def shell() -> Any:
    """Return IPython's shell, whose cells show figures; None in plain Python."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def name_of(file: str) -> str:
    """Return the cell that IPython has compiled under the name of a temporary file, such as "cell 5"; else `file`."""
    compiler: Any = getattr(shell(), "compile", None)
    label = compiler.format_code_name(file) if hasattr(compiler, "format_code_name") else None  # since IPython 8
    return f"cell {label[1].strip('In[]')}" if label is not None else file
