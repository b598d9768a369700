"""Observe a job: its speed, its gradients, its stacks, and the rank that makes the others wait.

- `observers.py`: calls all observers of a job; defines the part of a job that they may read, and from which threads.
- `record.py`: the run record, with `training_figures.py`, `gradient_times.py`.
- `pace.py`: reads the figures of this rank; `stragglers.py`: finds the rank that makes the others wait.
- `unsynchronized.py`: warns about ranks that train without gradient synchronisation.
- `metrics.py`: serves figures to Prometheus.
- `timeline.py`: a trace of all ranks, and its summary in words (`trace_events.py`).
- `stack_server.py`: serves the ranks' stacks and figures.
- `rank_answers.py`: asks the ranks, for `cpudist stacks`, `cpudist top` and a notebook's cell; `rank_table.py`: shows
  the answers as a table.
- `summary.py`: compares runs by their records; `forecast.py`: predicts the speed on other numbers of hosts.

It must not import jobs, optimization, transformers, programs or command lines.
"""
