"""Observe a job: its speed, its gradients, its stacks, and which rank makes the others wait.

- `observers.py`: calls all observers of a job; what they may read of it.
- `record.py`: the run record, with `training_figures.py`, `gradient_times.py`.
- `pace.py`: the figures of each rank; `stragglers.py`: the rank that makes the others wait, and why.
- `unsynchronized.py`: ranks that train without gradient synchronisation.
- `metrics.py`: figures for Prometheus.
- `timeline.py`: a trace of all ranks (`trace_events.py`), and in words (`time_shares.py`, `busy_threads.py`).
- `stack_server.py`: serves the ranks' stacks and figures.
- `rank_answers.py`: asks the ranks, for `cpudist stacks`, `cpudist top` and a notebook's cell; `rank_table.py`: their
  answers as a table.
- `summary.py`: runs side by side, from their records; `forecast.py`: a run on other numbers of hosts.

It must not import jobs, optimization, transformers, programs or command lines.
"""
