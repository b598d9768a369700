"""Extractive question answering: SQuAD's questions and official scores (squad.py), windows and answers (spans.py)."""
