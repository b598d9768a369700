"""The command line: one module per command, which parses its options and calls the package.

Commands raise `UserError`; `main.py` prints it as one line on standard error and exits with status 2. Of the rest of
the package, only `__main__.py` imports from here.
"""
