"""Hand over a long command line from `cpudist launch` to its ranks: Hydra takes fewer than 1 000 words.

The words travel in an environment variable, which launchers pass on to all hosts, and get back into `sys.argv` there.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import zlib
from collections.abc import Sequence

from cpudist.errors import UserError

VARIABLE = "CPUDIST_ARGUMENTS"
_MOST_WORDS = 256  # that are given to the launcher itself
_MOST_BYTES = 100_000  # Linux takes 128 KB in a variable


def variables(words: Sequence[str]) -> dict[str, str]:
    """Return the environment that hands over `words`; empty where the launcher takes them on its command line.

    Raises:
        UserError: they are too long.
    """
    if len(words) <= _MOST_WORDS:
        return {}
    packed = base64.b64encode(zlib.compress(json.dumps(list(words)).encode())).decode()
    if len(packed) > _MOST_BYTES:
        raise UserError(f"{len(words)} arguments are too long for a launcher; have the script read them from a file")
    return {VARIABLE: packed}


def restore() -> None:
    """Append the words that were handed over to this process's arguments; its children do not get them."""
    if packed := os.environ.pop(VARIABLE, None):
        words = json.loads(zlib.decompress(base64.b64decode(packed)))
        sys.argv += words
        sys.orig_argv += words
