"""What every recipe needs: options, data, pretrained models, exact metrics on any number of ranks, the course of a run.

arguments.py (options), sources.py and splits.py (data and its parts), models.py (pretrained ones), evaluation.py (a
Trainer with exact metrics), course.py (train and evaluate), shapes.py (batches of few shapes), outcome.py (what is left
behind at the end), extras.py (packages that may be missing). It must not know what is learnt.
"""
