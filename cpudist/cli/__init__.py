"""The command line: what users type, turned into calls of the package.

One module per command. A command parses its options, lets the package do the work and turns a `UserError`
into one line and exit status 2. Nothing else in the package imports from here, and nothing here computes.
"""
