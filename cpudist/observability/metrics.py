"""Serve the figures of `cpudist top` to Prometheus (`--metrics-port`).

The ranks always publish these figures; rank 0 reads them at each request.
"""

from typing import ClassVar

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cpudist.console import say
from cpudist.errors import UserError
from cpudist.observability.observers import ObservedJob, Observer
from cpudist.observability.record import RunRecord

_OF_RANKS = {  # metrics of each rank, by field of `Pace`
    "steps": (CounterMetricFamily, "steps", "Optimizer steps."),
    "waited": (CounterMetricFamily, "waiting_seconds", "Time blocked in communication."),
    "loading": (CounterMetricFamily, "loading_seconds", "Time waiting for data loaders."),
    "bytes": (CounterMetricFamily, "communicated_bytes", "Bytes communicated."),
    "processor": (CounterMetricFamily, "cpu_seconds", "CPU time of all threads."),
    "memory": (GaugeMetricFamily, "memory_bytes", "Resident memory."),
}


class Metrics(Observer):
    """Serves the figures of a job until `stop`; port 0 takes any free port."""

    otherwise: ClassVar[dict[str, object]] = {"collect": ()}

    def __init__(self, job: ObservedJob, record: RunRecord, address: str, port: int) -> None:
        self._job, self._record = job, record
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, _ = start_http_server(port, address, registry)
        except OSError as error:
            why = f"cannot serve metrics at {address}:{port} ({error.strerror})"
            raise UserError(f"{why}; give another --metrics-port, 0 for any free one") from None
        say(f"metrics at http://{address}:{self._server.server_port}/metrics")

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def collect(self) -> list[Metric]:
        """Return the current figures; prometheus-client calls this."""
        training = self._record.training
        found = [CounterMetricFamily("cpudist_restarts", "Restarts of the job.", self._job.restarts)]
        if seconds := training.step_seconds():
            found.append(GaugeMetricFamily("cpudist_step_seconds", "Time of the newest step.", seconds[-1]))
        if training.losses:
            found.append(GaugeMetricFamily("cpudist_loss", "Loss that was logged last.", training.losses[-1]))
        statuses = self._job.statuses()
        for field, (kind, name, text) in _OF_RANKS.items():
            family = kind(f"cpudist_{name}", text, labels=("rank", "host"))
            for rank, status in statuses.items():
                if (value := getattr(status.pace, field, None)) is not None:
                    family.add_metric((str(rank), status.host), value)
            found.append(family)
        return found
