"""Ready-made training scripts: `cpudist-train clm --train_file …`.

Each module here is one recipe over Trainer and datasets with a function `main(argv)`; it may be read as an
example of how little a script needs to know about the job it runs in. Modules that several recipes share:
arguments.py (options), sources.py and text.py (data), models.py (pretrained ones), evaluation.py (exact metrics on
any number of ranks), course.py (train and evaluate), outcome.py (what is left behind at the end).

This file names the recipes without importing them: transformers takes seconds.
"""

from __future__ import annotations

RECIPES = {
    "clm": "causal language model on text files, from scratch or from a pretrained model",
    "qa": "question answering on SQuAD or data like it, from a pretrained model",
}
