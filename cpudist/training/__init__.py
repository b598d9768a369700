"""Run a target on every rank of a job that has started.

- `run_target.py`: runs the user's script or module to its end, and ends the job.
- `output_log.py`: the rank's output, in a file too.
- `timeline.py`: a trace of all ranks (`trace_events.py`), and in words (`time_shares.py`, `busy_threads.py`).
- `callbacks.py`: measures a Trainer's steps, and ends it after a signal (`interruption.py`).

It must not import launchers, rendezvous, process groups or command lines.
"""
