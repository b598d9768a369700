"""Run a target on every rank of a job that has started.

- `run_target.py`: runs the user's script or module to its end, and ends the job.
- `output_log.py`: copies the rank's output to a file.
- `callbacks.py`: measures a Trainer's steps, and ends it after a signal (`interruption.py`).

It must not import launchers, rendezvous, process groups or command lines.
"""
