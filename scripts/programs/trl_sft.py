"""TRL's supervised fine-tuning of a small Llama, without padding, whole and by LoRA."""

from datasets import Dataset
from peft import LoraConfig
from texts import FOLDER, QUICK, docstrings, show
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, set_seed
from trl import SFTConfig, SFTTrainer

tokenizer = AutoTokenizer.from_pretrained(FOLDER)
tokenizer.eos_token = tokenizer.sep_token
data = Dataset.from_dict({"text": [doc[:100] for doc in docstrings(24)]})
config = LlamaConfig(
    vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
)
options = {"bf16": False, "gradient_checkpointing": False, "max_length": None, "padding_free": True}
for adapter in (None, LoraConfig(r=4)):
    set_seed(0)
    model = LlamaForCausalLM(config)
    arguments = SFTConfig("out", per_device_train_batch_size=2, **options, **QUICK)
    trainer = SFTTrainer(model, arguments, train_dataset=data, processing_class=tokenizer, peft_config=adapter)
    trainer.train()
    show(trainer)
