"""Questions in the form of SQuAD, and small models that can learn them.

village.json holds 20 questions in the form of SQuAD 2.0, 8 of them without an answer. Its texts were written for this
file and describe nothing real, so no pretrained model knows the answers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from pretrained import small_bert
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertForQuestionAnswering, PreTrainedTokenizerFast

from cpudist.training.recipes.squad import Question

_NAMES = ["alba", "bruno", "carla", "dario", "elena", "fabio", "gioia", "ivano", "laura", "marco", "nadia", "oscar"]
_TOWNS = ["turin", "genoa", "bari", "the old town of lucca", "pisa", "san remo"]
_TRADES = ["baker", "ship builder", "judge", "potter", "cook", "teacher of music", "clerk"]
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]

VILLAGE = str(Path(__file__).with_name("village.json"))


def data() -> dict[str, Any]:
    """36 questions on 12 contexts of different lengths; a third of the questions have no answer."""
    paragraphs = []
    for i, name in enumerate(_NAMES):
        town, trade = _TOWNS[i % len(_TOWNS)], _TRADES[i % len(_TRADES)]
        asides = " ".join(f"{_NAMES[(i + k) % 12].title()} knows {name.title()}." for k in range(1, 1 + i))
        context = f"{asides} {name.title()} lives in {town.title()}. {name.title()} works as a {trade}.".strip()
        paragraphs.append(
            {
                "context": context,
                "qas": [
                    _question(f"{name}-0", f"Where does {name.title()} live?", context, town.title()),
                    _question(f"{name}-1", f"What does {name.title()} work as?", context, f"a {trade}"),
                    _question(f"{name}-2", f"Whom did {name.title()} marry?", context, None),
                ],
            }
        )
    articles = [{"title": str(i), "paragraphs": paragraphs[i : i + 4]} for i in (0, 4, 8)]
    return {"version": "made up", "data": articles}


def _question(name: str, text: str, context: str, answer: str | None) -> dict[str, Any]:
    answers = [] if answer is None else [{"text": answer, "answer_start": context.rindex(answer)}]
    return {"id": name, "question": text, "answers": answers, "is_impossible": answer is None}


def write(folder: Path, content: Any = None) -> str:
    """A file with `content`, or with `data`."""
    path = folder / "questions.json"
    path.write_text(json.dumps(data() if content is None else content))
    return str(path)


def row(question: Question) -> dict[str, Any]:
    """A question as the hub has it."""
    answers = {"text": question.answers, "answer_start": question.starts}
    return {"id": question.id, "question": question.text, "context": question.context, "answers": answers}


def small_tokenizer(padding_side: str = "right") -> PreTrainedTokenizerFast:
    """WordPiece as BERT's, trained on `data`, which it cuts into more than whole words."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    # All letters, so that no text has unknown words.
    texts = [
        json.dumps(data()),
        "abcdefghijklmnopqrstuvwxyz 0123456789",
        *(f"x{c}" for c in "abcdefghijklmnopqrstuvwxyz"),
    ]
    tokenizer.train_from_iterator(
        texts, trainers.WordPieceTrainer(vocab_size=160, special_tokens=_SPECIAL, show_progress=False)
    )
    special = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
        pad_token="[PAD]",
        padding_side=padding_side,
        model_max_length=512,
    )


def save_small_model(folder: Path) -> str:
    """An untrained BERT that learns `data` in seconds, with its tokenizer."""
    tokenizer = small_tokenizer()
    torch.manual_seed(0)
    config = small_bert(len(tokenizer), width=64, layers=2, heads=4, tokens=128)
    BertForQuestionAnswering(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
