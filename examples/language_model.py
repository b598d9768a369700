r"""Train a causal language model on text files: a new small GPT-2 with its own tokenizer, or a pretrained model.

    mpirun -n 2 cpudist-train examples/language_model.py --train_files corpus/*.txt --eval_files held-out.txt \
        --output_dir runs/language_model --max_steps 500 --learning_rate 1.5e-3 --logging_steps 25

With --model_name, a folder or a name on the hub, it goes on from a pretrained model. It runs in one process, too
(python examples/language_model.py ...), and on every backend. The script knows nothing of cpudist: copy it, change it.
"""

import math
import sys
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import torch
import torch.distributed as dist
from datasets import Dataset, DatasetDict, load_dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    EvalPrediction,
    GPT2Config,
    HfArgumentParser,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)


@dataclass
class Arguments:
    """Which text, and which model."""

    train_files: list[str] = field(metadata={"help": "Text files to train on."})
    eval_files: list[str] = field(default_factory=list, metadata={"help": "Text files to evaluate on."})
    model_name: str | None = field(default=None, metadata={"help": "Pretrained model: a folder or a hub name."})
    config_overrides: str = field(
        default="n_layer=4,n_embd=256,n_head=4", metadata={"help": "Sizes of a new model: NAME=VALUE,NAME=VALUE."}
    )
    vocab_size: int = field(default=8192, metadata={"help": "Size of a new model's tokenizer."})
    block_size: int = field(default=256, metadata={"help": "Tokens of a sample."})


def main() -> None:
    parser = HfArgumentParser((Arguments, TrainingArguments))
    parser.set_defaults(ddp_find_unused_parameters=False)  # there are none, and looking for them costs every step
    arguments, training = parser.parse_args_into_dataclasses()
    for name in (*arguments.train_files, *arguments.eval_files):
        if not Path(name).is_file():
            sys.exit(f"there is no file {name}")
    set_seed(training.seed)
    with training.main_process_first(local=True):  # the other ranks of a host read what the first one has cached
        files = {"train": arguments.train_files} | ({"eval": arguments.eval_files} if arguments.eval_files else {})
        lines = load_dataset("text", data_files=files, keep_linebreaks=True, encoding_errors="replace")
    tokenizer = make_tokenizer(arguments, lines["train"])
    with training.main_process_first(local=True):
        blocks = cut_into_blocks(lines, tokenizer, arguments.block_size)

    trainer = Trainer(
        make_model(arguments, tokenizer),
        training,
        default_data_collator,
        train_dataset=blocks["train"],
        eval_dataset=blocks.get("eval"),
        processing_class=tokenizer,
        preprocess_logits_for_metrics=block_losses,
        compute_metrics=perplexity,
    )
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()
    if "eval" in blocks:
        trainer.log_metrics("eval", trainer.evaluate())
    trainer.save_state()
    if trainer.is_world_process_zero():
        print("The model writes:", write(trainer.model, tokenizer, min(arguments.block_size, 64)), sep="\n")


def make_tokenizer(arguments: Arguments, lines: Dataset) -> PreTrainedTokenizerFast:
    """Load the pretrained model's tokenizer, or train one on rank 0 for all ranks."""
    if arguments.model_name:
        return AutoTokenizer.from_pretrained(arguments.model_name)
    trained = [""]
    if not dist.is_initialized() or dist.get_rank() == 0:
        bpe = Tokenizer(models.BPE())
        bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        alphabet = {"special_tokens": ["<|endoftext|>"], "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
        trainer = trainers.BpeTrainer(vocab_size=arguments.vocab_size, show_progress=False, **alphabet)
        bpe.train_from_iterator((batch["text"] for batch in lines.iter(10_000)), trainer)
        trained = [bpe.to_str()]
    if dist.is_initialized():
        dist.broadcast_object_list(trained)
    ends = dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<|endoftext|>")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(trained[0]), **ends)


def cut_into_blocks(lines: DatasetDict, tokenizer: PreTrainedTokenizerFast, size: int) -> DatasetDict:
    """Join lines to one stream of tokens, and cut it into blocks of `size` tokens."""

    def cut(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        tokens = list(chain.from_iterable(tokenizer(batch["text"], add_special_tokens=False)["input_ids"]))
        blocks = [tokens[start : start + size] for start in range(0, len(tokens) - size + 1, size)]
        return {"input_ids": blocks, "labels": blocks}

    # Of each batch of lines, the tokens that are left over are lost; large batches lose few.
    blocks = lines.map(cut, batched=True, batch_size=10_000, remove_columns=["text"])
    if not all(map(len, blocks.values())):
        sys.exit(f"the text is too short for a block of {size} tokens; give more, or a smaller --block_size")
    return blocks


def make_model(arguments: Arguments, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Load the pretrained model, or make a new one."""
    if arguments.model_name:
        return AutoModelForCausalLM.from_pretrained(arguments.model_name, dtype=torch.float32)
    end = tokenizer.eos_token_id
    config = GPT2Config(vocab_size=len(tokenizer), bos_token_id=end, eos_token_id=end, loss_type="ForCausalLM")
    config.n_positions = arguments.block_size
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0  # dropout is for text that is seen many times
    config.update_from_string(arguments.config_overrides)
    return AutoModelForCausalLM.from_config(config)


def block_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return each block's mean loss: all that ranks gather. Each token predicts the next one."""
    losses = torch.nn.functional.cross_entropy(logits[:, :-1].mT.float(), labels[:, 1:], reduction="none")
    return losses.mean(dim=1)


def perplexity(evaluated: EvalPrediction) -> dict[str, float]:
    """Return the perplexity, with each block counted once, on any number of ranks."""
    return {"perplexity": math.exp(evaluated.predictions.astype("float64").mean())}


def write(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, tokens: int) -> str:
    """Return what the model writes, so many tokens."""
    start = torch.tensor([tokenizer.encode("\n")[:1]])
    model.eval().to("cpu")  # a device that compiles would compile for every length
    written = model.generate(start, attention_mask=torch.ones_like(start), max_length=tokens, do_sample=True, top_k=40)
    return str(tokenizer.decode(written[0], skip_special_tokens=True)).strip()


if __name__ == "__main__":
    main()
