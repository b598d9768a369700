"""Run a target on every rank of a job that has started.

- `target.py`: the user's script, module or recipe; `run_target.py`: runs it to its end, and ends the job.
- `callbacks.py`: measures a Trainer's steps, and ends it after a signal (`interruption.py`).
- `summary.py`: a run record in words, and the loss curve as a picture.
- `recipes/`: ready-made training scripts.

It must not know launchers, rendezvous, process groups or command lines.
"""
