"""Counts the graphs that the runtime compiles, and finds the changed shape behind one; replaces `compile`.

Every new shape makes a new graph, and compiling one takes longer than many steps. The runtime has the numbers
(`torch_xla.debug.metrics`); this module warns the user.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch_xla.debug import metrics

from cpudist.backends.xla import transfers
from cpudist.console import say
from cpudist.errors import UserError

Shapes = dict[str, tuple[int, ...]]

_NANOSECONDS = 1e-9
_LONGEST_WARM_UP = 10  # steps; longer than that, every batch has a new shape
_UNEXPLAINED = 3  # tolerated compiles without a new shape: logging, a learning rate that becomes zero


class Graphs:
    """Counter of one job's compiled graphs; `end_step` is called for every optimizer step."""

    def __init__(self, warns: bool) -> None:
        self._warns = warns
        self._count_before, self._seconds_before = _compiled()
        self._compiled = self._count_before
        self._waited_for = _handed_back()
        self._shapes: Shapes | None = None
        self._known: set[tuple[tuple[str, tuple[int, ...]], ...]] = set()
        self._change: str | None = None
        self._aside = self._trained = False
        self._steps = 0
        self._warm = False
        self._warned = False
        self._unexplained = 0
        self.late = 0
        self.waits = 0

    def watch(self, model: torch.nn.Module) -> Any:
        """Note the shapes of all inputs of `model`, by a hook; return the hook's handle."""
        return model.register_forward_pre_hook(self._note_batch, with_kwargs=True)

    def _note_batch(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not module.training:  # evaluation compiles its own graphs
            self._aside = True
            return
        named = {**{f"argument {i}": value for i, value in enumerate(args)}, **kwargs}
        shapes = {name: tuple(value.shape) for name, value in named.items() if isinstance(value, torch.Tensor)}
        self._trained = True
        key = tuple(sorted(shapes.items()))
        if self._shapes is not None and key not in self._known:
            self._change = _difference(self._shapes, shapes)
        self._known.add(key)
        self._shapes = shapes

    def end_step(self) -> None:
        """Note that a step has been given to the device. Steps are warm-up until one compiles nothing, at most ten."""
        count = _compiled()[0]
        fresh, self._compiled = count - self._compiled, count
        if self._trained:  # otherwise the job waits for the device for another reason, such as a checkpoint
            if fresh == 0:
                self._warm = True
            elif (self._warm or self._steps >= _LONGEST_WARM_UP) and not self._aside:
                self._warn()
            self._steps += 1
        handed_back = _handed_back()
        self.waits += handed_back > self._waited_for
        self._waited_for = handed_back
        self._aside = self._trained = False
        self._change = None

    def summary(self) -> dict[str, Any]:
        """Return fields for the run record."""
        count, nanoseconds = _compiled()
        return {
            "graphs_compiled": count - self._count_before,
            "compile_seconds": round((nanoseconds - self._seconds_before) * _NANOSECONDS, 3),
            "steps_that_compiled_after_warm_up": self.late,
            "steps_that_waited_for_data_from_the_device": self.waits,
        }

    def _warn(self) -> None:
        self.late += 1
        self._unexplained += self._change is None
        if self._warned or (self._change is None and self._unexplained <= _UNEXPLAINED):
            return
        self._warned = True
        if self._warns:
            cause = self._change or "no input changed its shape, so look for a Python number that changes every step"
            say(f"warning: xla compiles again after warm-up, which is slow: {cause} (the run record counts how often)")


def compile_in_parts(original: Callable[..., Any], is_main_process: bool) -> Callable[..., Any]:
    """Replace `torch_xla.compile`: ``full_graph=True`` has no effect where gradients leave the device within a step."""

    def compile(f: Any = None, full_graph: bool = False, *args: Any, **kwargs: Any) -> Any:
        if full_graph and is_main_process and dist.get_world_size() > 1:
            say("xla: full_graph=True is left out: gradients go through the host, so a step is two graphs")
        return original(f, full_graph and dist.get_world_size() == 1, *args, **kwargs)

    return compile


def compile_without_openxla(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `torch.compile`: openxla (2.8) fails in the middle of a step when gradients leave the device."""

    def compile(*args: Any, backend: Any = "inductor", **kwargs: Any) -> Any:
        if backend == "openxla" and dist.get_world_size() > 1:
            raise UserError(
                "torch.compile(backend='openxla') is not for several CPU processes, whose gradients go through the "
                "host; leave it out, or start one process with --mesh"
            )
        return original(*args, backend=backend, **kwargs)

    return compile


def _difference(before: Shapes, now: Shapes) -> str:
    changed = [
        f"{name} went from {_text(before[name])} to {_text(shape)}" if name in before else f"{name} is new"
        for name, shape in now.items()
        if before.get(name) != shape
    ]
    return ", ".join(changed) or f"{', '.join(before.keys() - now.keys())} is no longer given"


def _text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a number"


def _compiled() -> tuple[int, float]:
    """Return how many graphs this process has compiled so far, and for how many nanoseconds."""
    data = metrics.metric_data("CompileTime")
    return (int(data[0]), float(data[1])) if data else (0, 0.0)


def _handed_back() -> int:
    """Return how often the device has handed data back, without the transfers of gradients."""
    return transfers.transfers() - transfers.fetched()
