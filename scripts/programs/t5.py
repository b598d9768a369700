"""A small T5 under transformers' Seq2SeqTrainer."""

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
config = T5Config(
    vocab_size=len(tokenizer), d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0
)
model = T5ForConditionalGeneration(config)
data = Dataset.from_list([tokenizer(doc[:60], text_target=doc[60:90]) for doc in docstrings(24)])
arguments = Seq2SeqTrainingArguments("out", per_device_train_batch_size=2, **QUICK)
trainer = Seq2SeqTrainer(model, arguments, train_dataset=data, data_collator=DataCollatorForSeq2Seq(tokenizer, model))
trainer.train()
show(trainer)
