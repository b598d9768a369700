"""The command line: one module per command, which parses its options and calls the package.

Commands raise `UserError`; `main.py` prints it as one line on standard error and exits with status 2. No other part of
the package imports from here, and nothing here computes.
"""
