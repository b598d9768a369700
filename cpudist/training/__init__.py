"""What runs on every rank of a training job once it has started.

- `target.py`: the user's script, module or recipe; `run.py`: running it to its end, and the job with it.
- `quiet.py`: all ranks but the first keep quiet; `step_timer.py`: Trainer's steps, measured for the run record.
- `recipes/`: ready-made training scripts; `curve.py`, `summary.py`: how a run went, to look at and to read.

It must not know environments, rendezvous, process groups or command lines.
"""
