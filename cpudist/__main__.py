"""`python -m cpudist`: the same as the command `cpudist`."""

import sys

from cpudist.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
