"""Classification: names of classes (labels.py), losses and metrics (classification.py), tables of text (tables.py)."""
