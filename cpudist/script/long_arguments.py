"""Pass a long command line from `cpudist launch` to its ranks, because Hydra accepts fewer than 1 000 words.

Launchers pass an environment variable with the words to all hosts, and `restore` appends the words to `sys.argv`.
"""

import base64
import json
import os
import sys
import zlib
from collections.abc import Sequence

from cpudist.errors import UserError

VARIABLE = "CPUDIST_ARGUMENTS"
_MOST_WORDS = 256  # Longer command lines are passed in the variable.
_MOST_BYTES = 100_000  # Linux limits a variable to 128 KB.


def variables(words: Sequence[str]) -> dict[str, str]:
    """Return the environment variable that passes `words`; empty if the launcher's command line can take them."""
    if len(words) <= _MOST_WORDS:
        return {}
    packed = base64.b64encode(zlib.compress(json.dumps(list(words)).encode())).decode()
    if len(packed) > _MOST_BYTES:
        raise UserError(f"{len(words)} arguments are too long for a launcher; have the script read them from a file")
    return {VARIABLE: packed}


def restore() -> None:
    """Append the passed words to this process's arguments, and remove the variable for its children."""
    if packed := os.environ.pop(VARIABLE, None):
        words = json.loads(zlib.decompress(base64.b64decode(packed)))
        sys.argv += words
        sys.orig_argv += words
