"""The command line: one module per command, which parses its options and calls the package.

Commands raise `UserError`, which becomes one line on standard error and exit status 2. Nothing else in the package
imports from here, and nothing here computes.
"""
