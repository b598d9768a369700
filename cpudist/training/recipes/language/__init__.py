"""Language models on text: text files to blocks of tokens (text.py), and what clm and mlm share (language_model.py)."""
