"""Rank 0 alone draws progress bars and logs: the libraries on the other ranks keep quiet.

What a user's script prints itself is left alone: it may print on every rank on purpose. Must run before the
libraries are imported, which is when they read these variables; a value that the user set stays.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings

from cpudist.huggingface.on_import import after_import

_QUIET = {
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "DATASETS_VERBOSITY": "error",
}


def quiet_libraries() -> None:
    """Turn off bars, informative logs and warnings of the usual libraries in this process."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    # The level alone does not do: Trainer sets that of the other ranks to "warning".
    after_import("transformers.utils.logging", lambda module: module.disable_default_handler())
    logging.getLogger("transformers").addHandler(logging.NullHandler())  # without any, warnings go to stderr
    if not sys.warnoptions:  # -W and PYTHONWARNINGS are the user's word
        warnings.simplefilter("ignore")
