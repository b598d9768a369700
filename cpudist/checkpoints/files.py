"""Write and read one checkpoint: a folder of `torch.distributed.checkpoint` (DCP) with a manifest."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.utils.serialization import config

from cpudist.checkpoints import folders, manifest, state
from cpudist.checkpoints.publishing import Publisher, Ranks
from cpudist.console import first_line, names_of
from cpudist.errors import UserError
from cpudist.job import current

_PER_THREAD = torch.__version__ >= "2.13"  # before 2.13, serialisation options apply to all threads


def save(
    folder: str | Path,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    **more: Any,
) -> None:
    """Save a training into `folder`; all ranks must call this. After a kill, the folder is complete or absent.

    Any backend and any number of ranks can load the checkpoint. The format is `torch.distributed.checkpoint`'s.

    Args:
        folder: a folder on a disk that all hosts share. An existing checkpoint is replaced.
        model: the model, wrapped or not; it is saved under its own names, without DDP's ``module.``.
        optimizer: its optimizer.
        more: anything with ``state_dict`` and ``load_state_dict``, such as a learning-rate scheduler, and plain values.
            A value that differs between ranks needs a different name on each rank.

    Raises:
        UserError: the disk is full, or `folder` exists and is no checkpoint of cpudist.

    Examples:
        >>> model = torch.nn.Linear(8, 2)
        >>> cpudist.save("out/best", model=model, accuracy=0.9)
    """
    target = folders.path_of(folder).resolve()  # a symbolic link stays, and points to the new checkpoint
    ranks = Ranks()
    tree = state.collect(model, optimizer, more, ranks.rank)
    write(tree, target, ranks, Publisher(target.parent, alone=False))


def load(
    folder: str | Path,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Load a checkpoint of `save` or `Checkpoints` from `folder`; all ranks must call this.

    Parts are unpickled, so load only checkpoints from people you trust.

    Args:
        folder: the checkpoint.
        model: the model to load into, wrapped or not.
        optimizer: its optimizer.
        more: other objects to load into; a plain value is returned if the checkpoint has none of that name.

    Returns:
        The plain values by their names.

    Raises:
        UserError: there is no checkpoint, it is damaged, or it belongs to another model.

    Examples:
        >>> model = torch.nn.Linear(8, 2)
        >>> cpudist.save("out/best", model=model, accuracy=0.9)
        >>> cpudist.load("out/best", model=model)
        {'accuracy': 0.9}
    """
    ranks, path = Ranks(), folders.path_of(folder).resolve()
    if ranks.rank == 0 and not path.exists():
        folders.restore(path.parent, path.name)
    if (problem := damage(path, ranks)) is not None:
        raise UserError(f"{path} is damaged: {problem}; load another checkpoint")
    return read(path, ranks, model, optimizer, more)


def write(
    tree: dict[str, Any],
    target: Path,
    ranks: Ranks,
    publisher: Publisher,
    step: int | None = None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write a tree of `state.collect`; all ranks must call this. Rank 0 calls `check` before anything is written."""

    def check_all() -> None:
        if target.exists() and not (target / manifest.FILE).is_file() and (target.is_file() or any(target.iterdir())):
            raise UserError(f"{target} exists and is no checkpoint of cpudist; move it, or save elsewhere")
        check()

    written = publisher.begin(target.name, ranks, ranks.rank == 0, check_all)
    try:
        # The manifest has a checksum of each file; torch's own checksums would take half of the CPU time.
        unchecked = {"save.compute_crc32": False} if _PER_THREAD else {}
        with _quiet(), config.patch(unchecked):  # type: ignore[attr-defined]  # torch adds it at run time
            writer = FileSystemWriter(written)
            dcp.save(tree, storage_writer=writer, process_group=ranks.group)
    except CheckpointException as error:  # raised on all ranks
        rank, (failure, _) = next(iter(error.failures.items()))
        full = folders.why_full(failure, target.parent)
        remedy = "make room, or save elsewhere"
        raise UserError(f"rank {rank}: cannot save {target}: {full or first_line(failure)}; {remedy}") from error

    def checksums() -> dict[str, tuple[int, str]]:  # here, because other hosts may not see whole files yet
        return manifest.checksums(written, written.glob(f"__{ranks.rank}_*"))

    def seal(parts: list[dict[str, tuple[int, str]]]) -> None:
        files = {name: checksum for part in parts for name, checksum in part.items()}
        if missing := [name for name in files if not (written / name).exists()]:
            remedy = "save on a disk that all hosts share"
            raise UserError(f"{names_of(missing, 'name')} of {target} cannot be seen on rank 0; {remedy}")
        job = current()
        manifest.seal(written, step, ranks.size, [] if job is None else job.run_ids, known=files)

    publisher.complete(written, ranks, ranks.rank == 0, checksums, seal)


def damage(folder: Path, ranks: Ranks) -> str | None:
    """Describe the first fault in a checkpoint's files, or return None; each rank checks a part of the files."""

    def compare() -> str | None:
        if not (folder / manifest.FILE).is_file():
            raise UserError(f"there is no checkpoint {folder}; give the folder that was saved into")
        return manifest.damage(folder, ranks.rank, ranks.size)

    return next(filter(None, ranks.each(compare)), None)


def read(
    folder: Path,
    ranks: Ranks,
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer | None,
    more: Mapping[str, Any],
    *,
    with_random: bool = False,
) -> dict[str, Any]:
    """Load an undamaged checkpoint and return its plain values; `with_random` restores this rank's random states."""
    state.check_arguments(model, optimizer, more)
    modules = {name: value for name, value in more.items() if isinstance(value, torch.nn.Module)}
    if model is not None:
        modules["model"] = model
    others = {name: value for name, value in more.items() if state.is_stateful(value) and name not in modules}
    reader, optional = FileSystemReader(folder), {"optimizer"} if optimizer is not None else set()
    metadata = reader.read_metadata()
    places = {name: _places_of(name, module, metadata, folder) for name, module in modules.items()}
    wanted = {"values", *others, *optional, *({f"random.{ranks.rank}"} if with_random else ())}
    with _quiet():
        tree = _load_state_dict_from_keys(wanted, storage_reader=reader, process_group=ranks.group)
        if missing := [name for name in (*others, *optional) if name not in tree]:
            raise UserError(f"{folder} has no {names_of(missing, 'name')}; load without")
        dcp.load(places, storage_reader=reader, process_group=ranks.group)
    for name, module in modules.items():
        values = {key: value[0] if isinstance(value, tuple) else value for key, value in places[name].items()}
        state.unwrapped(module).load_state_dict(values)
    if model is not None and optimizer is not None:
        state.load_optimizer(model, optimizer, tree["optimizer"])
    for name, value in others.items():
        value.load_state_dict(tree[name][0])
    if with_random and "random" in tree:
        state.load_random(tree["random"][str(ranks.rank)][0])
    return state.plain_values(more) | {name: value for name, (value,) in tree.get("values", {}).items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide DCP's warnings about a missing process group, and torch 2.8's warning that its own code causes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is (disabled|unavailable)|TypedStorage is deprecated")
        yield


def _places_of(name: str, module: torch.nn.Module, metadata: Metadata, folder: Path) -> dict[str, Any]:
    """Return the tree of a module for DCP to load into; raise `UserError` if it belongs to another module."""
    tree = state.of_module(module)
    saved = {
        path[1]: getattr(metadata.state_dict_metadata[key], "size", None)
        for key, path in (metadata.planner_data or {}).items()
        if path[0] == name and len(path) == 2
    }
    problems = []
    if missing := [key for key in tree if key not in saved]:
        problems.append(f"has no {names_of(missing, 'name')}")
    if strange := [key for key in saved if key not in tree]:
        problems.append(f"has {names_of(strange, 'name')} besides")
    for key, value in tree.items():
        shape = tuple(saved.get(key) or ()) if isinstance(value, torch.Tensor) else None
        if key in saved and shape is not None and shape != tuple(value.shape):
            problems.append(f"has {key} of shape {shape} instead of {tuple(value.shape)}")
    if problems:
        raise UserError(f"{folder} is of another {name}: it {', '.join(problems[:3])}; make the model as it was saved")
    return tree
