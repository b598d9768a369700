"""Runs what a program checks: its functions whose names begin with `check_`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def run_checks(program: Mapping[str, Any], only: str = "") -> int:
    """Run the functions of a program, given by its globals, whose names contain `only`; return how many it has."""
    checks = {name: check for name, check in program.items() if name.startswith("check_")}
    for name, check in checks.items():
        if only not in name:
            continue
        try:
            check()
        except BaseException as error:
            error.args = (f"{name}: {error}",)
            raise
    return len(checks)
