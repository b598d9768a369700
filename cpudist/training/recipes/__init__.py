"""Ready-made training scripts: `cpudist-train clm --train_file …`.

Each module here is one recipe over Trainer and datasets with a function `main(argv)`; it may be read as an example of
how little a script needs to know about the job it runs in. What recipes share lies in folders: common (all of them),
language (clm, mlm), questions (qa), classes (classify, images), vision (images).

This file names the recipes without importing them: transformers takes seconds.
"""

from __future__ import annotations

RECIPES = {
    "clm": "causal language model on text, from scratch or from a pretrained model",
    "mlm": "masked language model on text, from scratch or from a pretrained model",
    "qa": "question answering on SQuAD or data like it, from a pretrained model",
    "classify": "text classification, of texts or pairs, from a pretrained model",
    "images": "image classification, from scratch or from a pretrained model",
}
