"""Runs programs one after the other in the same process, each with its words: `in_turn.py PROGRAM … -- PROGRAM …`."""

from __future__ import annotations

import runpy
import sys

for words in " ".join(sys.argv[1:]).split(" -- "):
    sys.argv = words.split()
    runpy.run_path(sys.argv[0], run_name="__main__")
