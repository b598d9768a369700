"""Checkpoints of a user's own training loop: keep the newest, and resume a restart from the last complete one."""

import itertools
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from cpudist.checkpoints import files, folders, manifest, state
from cpudist.checkpoints.publishing import Background, Ranks, publisher_of
from cpudist.checkpoints.runs import may_be_of_run, newest_whole, say_from_the_beginning, started_again
from cpudist.console import option, say
from cpudist.errors import UserError
from cpudist.job import current

_SHARED = "save on a disk that all hosts share"


class Checkpoints:
    """The checkpoints of a training in one folder, each complete or absent. All ranks must make the same calls.

    Attributes:
        folder: the folder that contains the checkpoints, as ``checkpoint-STEP``.
        keep: the number of complete checkpoints to keep.
        values: the plain values of the restored checkpoint.

    Args:
        folder: a folder on a disk that all hosts share; it need not exist.
        keep: the number of complete checkpoints to keep, at least 1.
        asynchronous: make `save` return after it has copied the training in memory; a thread then writes the copy. The
            next `save`, and the end of the job, wait for the thread.

    Raises:
        UserError: `keep` is less than 1, or the job's hosts do not share the folder.

    Examples:
        >>> model = torch.nn.Linear(8, 2)
        >>> checkpoints = cpudist.Checkpoints("out")
        >>> for step in range(checkpoints.restore(model=model), 3):
        ...     output = model(torch.ones(4, 8))  # and train
        ...     checkpoints.save(step + 1, model=model)
        >>> checkpoints.restore(model=model)
        3
    """

    def __init__(self, folder: str | Path, keep: int = 2, asynchronous: bool = False) -> None:
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise UserError(f"keep must be a whole number of checkpoints from 1 on, not {keep!r}")
        self.folder = folders.path_of(folder)
        self.keep = keep
        self.values: dict[str, Any] = {}
        self._goes_on = False  # an earlier run's checkpoints in the folder have become this run's
        self._background = Background() if asynchronous else None
        job = current()
        if job is not None and job.world.node_count > 1:
            check_shared(self.folder, Ranks())

    def restore(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **more: Any
    ) -> int:
        """Load the newest complete checkpoint of this run, with the random states of every rank.

        A damaged checkpoint is reported, and the previous one is used. If this run has saved none, it takes over the
        checkpoints of an earlier run in the folder; with ``resume="never"`` they are moved into a subfolder.

        Args:
            model: the model to load into, wrapped or not.
            optimizer: its optimizer.
            more: other objects to load into, with the names used in `save`; plain values are defaults of `values`.

        Returns:
            The step of the checkpoint; 0 if there is none.

        Raises:
            UserError: all checkpoints are damaged, ranks see none in common, or the model is another one.
        """
        self.wait()
        state.check_arguments(model, optimizer, more)
        ranks, job = Ranks(), current()
        self.values = state.plain_values(more)
        ranks.first(lambda: folders.restore(self.folder))
        resumes = job is None or job.options.resumes
        own = {step: path for step, path in self._own().items() if resumes or path in publisher_of(self.folder).saved}
        path = newest_whole(own, self.folder, _SHARED, lambda path: files.damage(path, ranks))
        earlier = path is None and resumes
        if earlier:
            path = newest_whole(_ours(self.folder), self.folder, _SHARED, lambda path: files.damage(path, ranks))
            self._goes_on = path is not None
        if path is not None:
            self.values = files.read(path, ranks, model, optimizer, more, with_random=True)
            if ranks.rank == 0:
                restarted = job is not None and job.restarts and path not in publisher_of(self.folder).saved
                again = f"{started_again(job)}: " if job and restarted else ""
                anew = f", which an earlier run has saved; {option('resume', 'never')} begins anew" if earlier else ""
                say(f"{again}going on from {path}{anew}")
            return int(path.name.removeprefix(folders.PREFIX))
        ranks.first(self._set_others_aside)
        if job is not None:
            say_from_the_beginning(job, self.folder)
        return 0

    def save(
        self,
        step: int,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **more: Any,
    ) -> None:
        """Save the training after `step` steps, then delete this run's checkpoints except the newest `keep`.

        Args:
            step: the number of steps so far, the same on all ranks.
            model: the model, wrapped or not.
            optimizer: its optimizer.
            more: anything with ``state_dict`` and ``load_state_dict``, such as a learning-rate scheduler, and plain
                values. A value that differs between ranks needs a different name on each rank.

        Raises:
            UserError: the disk is full, or a folder of this name exists and is no checkpoint of cpudist.
        """
        self.wait()
        ranks, background = Ranks(), self._background
        target = self.folder / f"{folders.PREFIX}{_checked(step, ranks)}"
        tree = state.collect(model, optimizer, more, ranks.rank, copied=background is not None)
        if background is None:
            self._write(tree, target, ranks, step)
        else:
            others = background.ranks()
            background.start(lambda: self._write(tree, target, others, step))

    def wait(self) -> None:
        """Wait until an asynchronous checkpoint is complete, and raise the errors of its `save`."""
        if self._background is not None:
            self._background.wait()

    def _write(self, tree: dict[str, Any], target: Path, ranks: Ranks, step: int) -> None:
        def check() -> None:
            if (target / manifest.FILE).is_file() and step not in self._own():
                raise UserError(f"{target} belongs to an earlier run; move it, or save in another folder")

        publisher = publisher_of(self.folder)
        files.write(tree, target, ranks, publisher, step, check)
        if ranks.rank == 0:
            folders.rotate(self._own().values(), self.keep, publisher.saved)

    def _own(self) -> dict[int, Path]:
        """Return the checkpoints of this run by their steps; all if it has no name or goes on from an earlier one."""
        job, ours, saved = current(), _ours(self.folder), publisher_of(self.folder).saved
        if job is None or not job.run_ids or self._goes_on:
            return ours
        return {step: path for step, path in ours.items() if path in saved or may_be_of_run(job, manifest.read(path))}

    def _set_others_aside(self) -> None:
        """Move the checkpoints of earlier runs out of the way of a run that begins anew."""
        own = self._own()
        others = [path for step, path in _ours(self.folder).items() if step not in own]
        if others:
            aside = next(
                path for number in itertools.count(1) if not (path := self.folder / f"earlier-{number}").exists()
            )
            aside.mkdir()
            for path in others:
                path.rename(aside / path.name)
            say(f"beginning anew; the checkpoints of earlier runs are in {aside}")


def check_shared(folder: Path, ranks: Ranks) -> None:
    """Check that all ranks see a file that rank 0 writes into `folder`, or into the nearest parent that all have."""
    nearest = next(path for path in (folder, *folder.parents) if path.is_dir())
    above = min(ranks.all_gather(str(nearest)), key=len)
    with ExitStack() as stack:
        probe = ranks.first(lambda: stack.enter_context(folders.probe(above)))
        blind = [rank for rank, sees in enumerate(ranks.all_gather(not probe or Path(probe).exists())) if not sees]
    if blind:
        raise UserError(f"the hosts do not share {folder}: rank {blind[0]} sees another folder than rank 0; {_SHARED}")


def _ours(folder: Path) -> dict[int, Path]:
    """Return cpudist's complete checkpoints in a folder by their steps, the newest last."""
    return {step: path for step, path in folders.numbered(folder).items() if (path / manifest.FILE).is_file()}


def _checked(step: int, ranks: Ranks) -> int:
    steps = ranks.all_gather(step)
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise UserError(f"step must be a whole number of steps from 0 on, not {step!r}")
    for rank, other in enumerate(steps):
        if other != steps[0]:
            raise UserError(f"rank {rank} saves step {other} and rank 0 step {steps[0]}; save one step on all ranks")
    return step
