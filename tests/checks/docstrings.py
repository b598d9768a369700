"""Runs the examples in the docstrings of the names of cpudist in the command line; the exit status counts failures."""

import doctest
import inspect
import sys
from functools import reduce

import torch

import cpudist

runner = doctest.DocTestRunner()
for name in sys.argv[1:]:
    text = inspect.getdoc(reduce(getattr, name.split("."), cpudist)) or ""
    names = {"cpudist": cpudist, "sys": sys, "torch": torch, "__name__": "__main__"}
    if name != "notebook_launcher":
        cpudist.init()
    runner.run(doctest.DocTestParser().get_doctest(text, names, name, None, None))
cpudist.shutdown()
sys.exit(runner.failures)
