"""Text files to blocks of tokens: finding the files, training a tokenizer on them, cutting.

Every rank ends up with the same data: the first rank of each node prepares and caches it, the others read the
cache; the tokenizer is trained by rank 0 alone and sent to the others.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from datasets import Dataset, load_dataset
from datasets.fingerprint import Hasher
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, TrainingArguments

from cpudist.errors import UserError

END_OF_TEXT = "<|endoftext|>"

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


def train_tokenizer(lines: Dataset, vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, as GPT-2's, for `lines`: trained on rank 0, the same on every rank."""
    text = [_train(_batches(lines), vocab_size) if _rank() == 0 else ""]
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.broadcast_object_list(text, src=0)
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(text[0]),
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
    )


def cut_into_blocks(
    lines: Dataset, tokenizer: PreTrainedTokenizerBase, block_size: int, arguments: TrainingArguments
) -> Dataset:
    """`lines` as one stream of tokens, cut into blocks of `block_size`; columns "input_ids" and "labels"."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    # A tokenizer's own pickle changes with use, so ranks and runs would miss each other's cache.
    key = Hasher.hash([lines._fingerprint, backend.to_str() if backend else repr(tokenizer), block_size])
    with arguments.main_process_first(local=True, desc="cutting text into blocks"):
        blocks = lines.map(
            _cut,
            fn_kwargs={"tokenizer": tokenizer, "block_size": block_size},
            batched=True,
            batch_size=_LINES_PER_BATCH,
            remove_columns=lines.column_names,
            new_fingerprint=key,
            desc=f"Cutting into blocks of {block_size} tokens",
        )
    if len(blocks) == 0:
        raise UserError(f"the text is too short for one block of {block_size} tokens; give more or --block_size")
    return blocks


def _cut(batch: dict[str, list[str]], tokenizer: PreTrainedTokenizerBase, block_size: int) -> dict[str, Any]:
    stream = [token for tokens in tokenizer(batch["text"])["input_ids"] for token in tokens]
    whole = len(stream) - len(stream) % block_size
    blocks = [stream[start : start + block_size] for start in range(0, whole, block_size)]
    return {"input_ids": blocks, "labels": blocks}


def _train(batches: Iterable[list[str]], vocab_size: int) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(batches, trainer)
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
