"""Record when the gradients of a step are complete; `cpudist forecast` uses these times."""

import time
from typing import Any

from cpudist.observability.observers import ObservedJob, Observer
from cpudist.observability.record import RunRecord

_FIRST, _STEPS = 6, 5  # Measure five steps after the first six, in which --compress auto chooses a scheme.
_GROUPS, _GROUP_BYTES = 32, 5 << 20  # Record at most 32 groups, each at least as large as a DDP bucket between hosts.


class GradientTimes(Observer):
    """Times the gradients of this process in some early steps, for the run record (docs/reference.md)."""

    def __init__(self, job: ObservedJob, record: RunRecord) -> None:
        self._job, self._record = job, record
        self._steps, self._before = 0, 0.0  # steps so far; communication seconds up to the end of the last one
        self._hooks: dict[Any, Any] = {}  # by parameter
        self._ends: dict[Any, float] = {}  # time at which each parameter's gradient was complete in this step
        self._samples: list[tuple[float | None, dict[Any, float]]] = []

    def step(self, optimizer: Any) -> None:
        """Add hooks to the optimizer's parameters in the first steps, and note the times of the next steps."""
        if self._record.gradient_times:
            return
        self._steps += 1
        communicated = self._job.backend.communication_seconds()
        if self._steps <= _FIRST:  # several steps, since a script may have several optimizers
            for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
                if parameter.requires_grad and parameter not in self._hooks:
                    self._hooks[parameter] = parameter.register_post_accumulate_grad_hook(self.complete)
        elif self._ends:
            last = max(self._ends.values())
            waited = None if communicated is None else communicated - self._before
            self._samples.append((waited, {each: last - end for each, end in self._ends.items()}))
            if len(self._samples) == _STEPS:
                self._samples.sort(key=lambda sample: (sample[0] or 0.0) + max(sample[1].values()))
                self._record.gradient_times = self._groups(*self._samples[_STEPS // 2])
                self.end()
        self._ends.clear()
        self._before = communicated or 0.0

    def complete(self, parameter: Any) -> None:
        self._ends[parameter] = time.perf_counter()  # with gradient accumulation the last batch counts

    def _groups(self, waited: float | None, seconds: dict[Any, float]) -> dict[str, Any]:
        least = max(sum(parameter.nbytes for parameter in seconds) / _GROUPS, _GROUP_BYTES)
        groups = [[0.0, 0]]
        for parameter in sorted(seconds, key=seconds.__getitem__, reverse=True):
            if groups[-1][1] >= least:
                groups.append([0.0, 0])
            groups[-1] = [round(seconds[parameter], 6), groups[-1][1] + parameter.nbytes]
        values = sum(parameter.numel() for parameter in seconds)
        return {"waiting": waited and round(waited, 6), "values": values, "groups": groups}

    def end(self) -> None:
        """Remove the hooks, and the references to parameters, which keep the model in memory."""
        for hook in self._hooks.values():
            hook.remove()
        for kept in (self._hooks, self._ends, self._samples):
            kept.clear()
