"""Ready-made training scripts: `cpudist-train clm --train_file …`.

A recipe is a page over Trainer and datasets, read from top to bottom, with a command to try at its head and a function
`main(argv)`: clm.py, mlm.py, qa.py, classify.py, images.py. What all of them need lies in data.py (options, reading,
splits), script.py (options, models, training, results) and trainer.py (exact metrics on any number of ranks). The other
files are algorithms: language_modeling.py, classification.py, squad.py, spans.py, convnet.py, pixels.py.

To add one, copy the page that is nearest, and name it here.

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
