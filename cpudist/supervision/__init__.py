"""End all ranks of a job and their launcher on every host after one rank fails or is lost, or the job stalls.

- `heartbeat.py`: a thread of each rank; it calls the watch, `--stall`, observers and a poll for signals.
- `rank_status.py`: a rank's status, published for the other ranks; `rank_texts.py`: the status in words.
- `watch.py`: notices failed and lost ranks.
- `long_waits.py`: notices calls that wait for long; `reports.py`: names the ranks that keep the others waiting.
- `step_counter.py`: counts the steps and batches of this rank.
- `stall.py`: ends a job in which no rank shows a sign of life.
- `failure.py`, `abort.py`: report the first failure, and end this rank and its launcher.

It must not import jobs, observers, optimization, transformers, programs or command lines.
"""
