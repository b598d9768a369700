"""Observe a job: its speed, its gradients, its stacks, and which rank makes the others wait.

- `record.py`: the run record; `gradient_times.py`: its times of gradients.
- `pace.py`: the figures of each rank; the rank that makes the others wait, and why.
- `stack_server.py`: serves the ranks' stacks and figures.
- `rank_answers.py`: asks the ranks, for `cpudist stacks`, `cpudist top` and a notebook's cell; `rank_table.py`: their
  answers as a table.
- `summary.py`: runs side by side, from their records; `forecast.py`: a run on other numbers of hosts.

It must not import jobs, optimization, transformers, programs or command lines.
"""
