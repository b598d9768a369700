"""What run_qa.py and run_mlm.py of transformers train in whole_jobs.py: layers of BERT-large's width on docstrings.

example(Path("transformers/examples/pytorch"), "qa", Path("out")) -> the script and its flags
"""

import itertools
import json
from collections import Counter
from pathlib import Path

from trainer_script import LARGE, PADDED, VOCABULARY, texts
from transformers import BertConfig, BertForMaskedLM, BertForQuestionAnswering, BertTokenizerFast, set_seed

TEXTS = 200  # more than is trained on
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SCRIPTS = {"qa": "question-answering/run_qa.py", "mlm": "language-modeling/run_mlm.py"}
MODELS = {"qa": BertForQuestionAnswering, "mlm": BertForMaskedLM}
FLAGS = {"qa": ["--doc_stride=128"], "mlm": ["--line_by_line=True", "--pad_to_max_length=True"]}


def example(examples: Path, model: str, folder: Path) -> list[str]:
    """Write the data, the vocabulary and the initial weights into `folder`; return the script and its flags."""
    # Without underscores, of which BERT makes tokens.
    lines = [" ".join(text).replace("_", "").lower() for text in itertools.islice(texts(), TEXTS)]
    words = Counter(itertools.chain.from_iterable(map(str.split, lines))).most_common(VOCABULARY - len(SPECIAL))
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *(word for word, _ in words)]), encoding="utf-8")
    BertTokenizerFast.from_pretrained(str(folder), model_max_length=PADDED).save_pretrained(folder)
    set_seed(0)
    MODELS[model](BertConfig(**LARGE)).save_pretrained(folder)
    data = folder / ("train.json" if model == "qa" else "train.txt")
    data.write_text(json.dumps({"data": questions(lines)}) if model == "qa" else "\n".join(lines), encoding="utf-8")
    flags = [f"--model_name_or_path={folder}", f"--train_file={data}", f"--max_seq_length={PADDED}", "--do_train"]
    return [str(examples / SCRIPTS[model]), *flags, *FLAGS[model]]


def questions(lines: list[str]) -> list[dict[str, object]]:
    """Return a question about each text, in the format of SQuAD as run_qa.py reads it."""
    found: list[dict[str, object]] = []
    for number, line in enumerate(lines):
        begin, end = len(line) // 3, len(line) // 2
        answers = {"text": [line[begin:end]], "answer_start": [begin]}
        found.append({"id": str(number), "question": f"What is {line[:40]}?", "context": line, "answers": answers})
    return found
