"""Text files to blocks of tokens: finding the files, training a tokenizer on them, cutting.

Every rank ends up with the same data: the first rank of each node prepares and caches it, the others read the
cache; the tokenizer is trained by rank 0 alone and sent to the others.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from datasets import Dataset, DatasetDict, load_dataset
from datasets.fingerprint import Hasher
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, TrainingArguments

from cpudist.errors import UserError
from cpudist.training.recipes.common import sources

# The special tokens of a tokenizer that is trained: as GPT-2's, and as BERT's.
CAUSAL = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<|endoftext|>")
MASKED = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}

# What is cut short at the end of a batch is lost: large batches lose little.
_LINES_PER_BATCH = 10_000


def find_files(entries: Sequence[str]) -> list[str]:
    """The files that `entries` name: files, patterns (data/*.txt), or folders with all text below them."""
    files: list[Path] = []
    for entry in entries:
        path = Path(entry).expanduser()
        if path.is_file():
            found = [path]
        elif path.is_dir():
            found = [file for file in sorted(path.rglob("*")) if file.is_file() and _is_text(file)]
        else:
            found = [Path(name) for name in sorted(glob.glob(str(path), recursive=True)) if Path(name).is_file()]
        if not found:
            raise UserError(f"{entry} names no text file (looked from {Path.cwd()})")
        files += found
    names = list(dict.fromkeys(str(file.resolve()) for file in files))
    if not any(Path(name).stat().st_size for name in names):
        raise UserError(f"nothing to read: {', '.join(entries)} is empty")
    return names


def read_lines(files: list[str], arguments: TrainingArguments) -> Dataset:
    """The lines of `files`, line breaks kept, in a column "text"."""
    with arguments.main_process_first(local=True, desc="reading text files"):
        return load_dataset(
            "text",
            data_files={"train": files},
            split="train",
            keep_linebreaks=True,
            encoding_errors="replace",
        )


def read_dataset(name: str, configuration: str | None, arguments: TrainingArguments) -> DatasetDict:
    """The splits of a data set of text, a hub name or a folder: lines in a column "text", each with a line break."""
    splits = sources.load(arguments, name, name=configuration)
    features = next(iter(splits.values())).features
    strings = ("string", "large_string")
    columns = [column for column, feature in features.items() if getattr(feature, "dtype", None) in strings]
    if not columns:
        raise UserError(f"{name} has no column of text, only {', '.join(features)}")
    column = "text" if "text" in columns else columns[0]
    with arguments.main_process_first(local=True, desc="reading text"):
        return splits.map(_as_lines, batched=True, input_columns=column, remove_columns=list(features))


def train_tokenizer(
    lines: Dataset, vocab_size: int, special_tokens: Mapping[str, str] = CAUSAL
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, as GPT-2's, for `lines`: trained on rank 0, the same on every rank.

    One that has a "cls_token" and a "sep_token" puts them around every text, as BERT's does.
    """
    text = [_train(_batches(lines), vocab_size, special_tokens) if _rank() == 0 else ""]
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.broadcast_object_list(text, src=0)
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(text[0]), **special_tokens)


def cut_into_blocks(
    lines: Dataset, tokenizer: PreTrainedTokenizerBase, block_size: int, arguments: TrainingArguments
) -> Dataset:
    """`lines` as one stream of tokens, cut into blocks of `block_size`; columns "input_ids" and "labels".

    Where the tokenizer puts special tokens around a text, it is a block that they stand around.
    """
    before, after = _frame(tokenizer)
    if len(before) + len(after) >= block_size:
        raise UserError(f"--block_size {block_size} leaves no room between the tokenizer's special tokens")
    key = Hasher.hash([lines._fingerprint, identity(tokenizer), block_size, before, after])
    with arguments.main_process_first(local=True, desc="cutting text into blocks"):
        blocks = lines.map(
            _cut,
            fn_kwargs={"tokenizer": tokenizer, "block_size": block_size, "before": before, "after": after},
            batched=True,
            batch_size=_LINES_PER_BATCH,
            remove_columns=lines.column_names,
            new_fingerprint=key,
            desc=f"Cutting into blocks of {block_size} tokens",
        )
    if len(blocks) == 0:
        raise UserError(f"the text is too short for one block of {block_size} tokens; give more or --block_size")
    return blocks


def identity(tokenizer: PreTrainedTokenizerBase) -> str:
    """What makes two tokenizers alike. A tokenizer's own pickle changes with use, so caches would be missed."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return str(backend.to_str()) if backend else repr(tokenizer)


def _as_lines(rows: list[str]) -> dict[str, list[str]]:
    return {"text": [row if row.endswith("\n") else row + "\n" for row in rows]}


def _frame(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The tokens that this tokenizer puts before and after a text, e.g. [CLS] and [SEP]."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    tokens, special = encoded["input_ids"], encoded["special_tokens_mask"]
    return tokens[: special.index(0)], tokens[len(special) - special[::-1].index(0) :]


def _cut(
    batch: dict[str, list[str]],
    tokenizer: PreTrainedTokenizerBase,
    block_size: int,
    before: list[int],
    after: list[int],
) -> dict[str, Any]:
    lines = tokenizer(batch["text"], add_special_tokens=False)["input_ids"]
    stream = [token for tokens in lines for token in tokens]
    room = block_size - len(before) - len(after)
    whole = len(stream) - len(stream) % room
    blocks = [before + stream[start : start + room] + after for start in range(0, whole, room)]
    return {"input_ids": blocks, "labels": blocks}


def _train(batches: Iterable[list[str]], vocab_size: int, special_tokens: Mapping[str, str]) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        # A mask stands for a word with the blank before it.
        special_tokens=[
            AddedToken(token, special=True, lstrip=token == special_tokens.get("mask_token"))
            for token in dict.fromkeys(special_tokens.values())
        ],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(batches, trainer)
    if "cls_token" in special_tokens:
        first, last = special_tokens["cls_token"], special_tokens["sep_token"]
        ids = [(token, tokenizer.token_to_id(token)) for token in (first, last)]
        tokenizer.post_processor = processors.TemplateProcessing(f"{first} $A {last}", None, ids)
    text: str = tokenizer.to_str()
    return text


def _batches(lines: Dataset) -> Iterator[list[str]]:
    for start in range(0, len(lines), _LINES_PER_BATCH):
        yield lines[start : start + _LINES_PER_BATCH]["text"]


def _is_text(path: Path) -> bool:
    """As git sees it: a file without a zero byte near its start; hidden files and folders are left out."""
    if any(part.startswith(".") for part in path.parts):
        return False
    with path.open("rb") as file:
        return b"\0" not in file.read(8192)


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0
