"""Ready-made training scripts: `cpudist-train clm --train_file …`.

A recipe is a page: clm.py, mlm.py, qa.py, classify.py or images.py, with a command to try in its docstring and a
function `main(argv)`. To understand one, read it from top to bottom, and three modules that all of them use:

- script.py: the options, a run, and its results
- data.py: the options of the data, reading it, choosing splits and samples, preparing them once for all ranks of a node
- models.py: loading and making models, lengths in tokens, a Trainer with exact evaluations

The other modules hold what pages call: language_modeling.py (clm, mlm), squad.py and spans.py (qa), classification.py
(classify, images), pixels.py and convnet.py (images).

To add a recipe, copy classify.py, import from these three, and name it below.

This module imports nothing, because transformers takes seconds to import.
"""

from __future__ import annotations

RECIPES = {
    "clm": "causal language model on text, from scratch or from a pretrained model",
    "mlm": "masked language model on text, from scratch or from a pretrained model",
    "qa": "question answering on SQuAD or data like it, from a pretrained model",
    "classify": "text classification, of texts or pairs, from a pretrained model",
    "images": "image classification, from scratch or from a pretrained model",
}
