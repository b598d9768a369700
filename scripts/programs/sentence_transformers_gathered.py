"""sentence-transformers' contrastive loss, whose negatives are gathered over the ranks."""

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss
from texts import FOLDER, QUICK, docstrings, show

model = SentenceTransformer(str(FOLDER), device="cpu")
docs = docstrings(32)
data = Dataset.from_dict({"anchor": [doc[:30] for doc in docs], "positive": [doc[30:60] for doc in docs]})
arguments = SentenceTransformerTrainingArguments("out", per_device_train_batch_size=4, **QUICK)
loss = MultipleNegativesRankingLoss(model, gather_across_devices=True)
trainer = SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=loss)
trainer.train()
show(trainer)
