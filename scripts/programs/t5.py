"""A small T5 under transformers' Seq2SeqTrainer, on the same batches of four in one process and on two ranks.

Under torchrun its losses are twice as large: Trainer multiplies them by the number of ranks (docs/trainer.md).
"""

import os

from datasets import Dataset
from texts import FOLDER, QUICK, docstrings, show
from transformers import (
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    set_seed,
)

tokenizer = AutoTokenizer.from_pretrained(FOLDER)
set_seed(0)
sizes = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
model = T5ForConditionalGeneration(T5Config(vocab_size=len(tokenizer), decoder_start_token_id=0, **sizes))
fixed = {"max_length": 8, "truncation": True, "padding": "max_length"}  # so that all batches have equally many targets
data = Dataset.from_list([tokenizer(doc[:60], text_target=doc[60:120], **fixed) for doc in docstrings(24)])
each = 4 // int(os.environ.get("WORLD_SIZE", "1"))
arguments = Seq2SeqTrainingArguments("out", per_device_train_batch_size=each, **QUICK)
trainer = Seq2SeqTrainer(model, arguments, train_dataset=data, data_collator=DataCollatorForSeq2Seq(tokenizer, model))
trainer.train()
show(trainer)
