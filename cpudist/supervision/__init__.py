"""End a job together: one rank fails, is lost or stalls, and all ranks and their launcher end everywhere.

- `heartbeat.py`: the thread of each rank in which the watch, `--stall`, signals and observers are called once a second.
- `rank_status.py`, `rank_texts.py`: what a rank is doing, published for the other ranks, and in words.
- `watch.py`: failed, lost, late and finished ranks; `reports.py`: which ranks keep the others waiting.
- `step_counter.py`: the steps and batches of this rank.
- `stall.py`: the end of a job in which no rank shows a sign of life.
- `failure.py`, `abort.py`: report the first failure, and end this rank and its launcher.

It must not import jobs, observers, optimization, transformers, programs or command lines.
"""
