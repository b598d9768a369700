"""The running job: the ranks meet, work together, fail together and leave together.

- `job.py`: `Job`, the one owner of a job's state, and `current`, the one that runs.
- `watch.py`, `failure.py`: one rank fails, the job ends everywhere; `leftovers.py`: so does its launcher.
- `whereabouts.py`, `stall.py`: where a rank is, and who keeps the others waiting.
- `record.py`: what is known of the run; `gradients.py`: of how gradients are reduced.
- `pinned.py`: torch and the rank's threads follow its pinning; `pinning_check.py`: whether they did.
- `process_group.py`: a script that makes `torch.distributed`'s process group itself joins the job.

It must not know optimization, transformers, recipes or command lines.
"""

from cpudist.job.job import Job, current, fail, require, start_job

__all__ = ["Job", "current", "fail", "require", "start_job"]
