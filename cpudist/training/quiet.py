"""Rank 0 alone draws progress bars and logs: the libraries on the other ranks keep quiet.

What a user's script prints itself is left alone: it may print on every rank on purpose. Must run before the
libraries are imported, which is when they read these variables; a value that the user set stays.
"""

from __future__ import annotations

import logging
import sys
import warnings
from typing import TYPE_CHECKING

from cpudist.on_import import after_import

if TYPE_CHECKING:
    from cpudist.changes import Changes

_QUIET = {
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "DATASETS_VERBOSITY": "error",
}


def quiet_libraries(changes: Changes) -> None:
    """Turn off bars, informative logs and warnings of the usual libraries in this process, until `changes` end."""
    for name, value in _QUIET.items():
        changes.default_variable(name, value)
    # The level alone does not do: Trainer sets that of the other ranks to "warning".
    changes.then(after_import("transformers.utils.logging", lambda module: module.disable_default_handler()))
    logging.getLogger("transformers").addHandler(logging.NullHandler())  # without any, warnings go to stderr
    if not sys.warnoptions:  # -W and PYTHONWARNINGS are the user's word
        changes.attribute(warnings, "filters", list(warnings.filters))
        warnings.simplefilter("ignore")
