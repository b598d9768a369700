"""The user's options of a job: flags of `cpudist-train`, or arguments of `cpudist.init` and `notebook_launcher`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self

from cpudist import backends
from cpudist.backends.compression import check_scheme
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.waiting import check_timeout

RESUME = ("auto", "never")

# A running job takes these options from a script's own `cpudist.init` if the user has not set them (None).
_LATE = ("timeout", "compress", "resume", "async_checkpoint", "stall", "balance")


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The options that the user gives a job, as keyword arguments or flags, and the program that it runs.

    A wrong value raises `UserError` here; `backend`, its options and `interface` are checked when the job starts.
    """

    backend: str = "auto"  # a backend's name, or "auto"
    # The backend's own options, by name; see `Backend.configure`.
    backend_options: Mapping[str, Any] = field(default_factory=dict)
    timeout: float | None = None  # limit of the start and of every collective, in seconds; None: not given, see `limit`
    interface: str | None = None  # the network interface of the rendezvous and of all messages; None: any
    pin: bool = True  # whether ranks are pinned
    compress: str | None = None  # the compression of gradients between hosts; None: not given
    # "auto" resumes a training from this run's newest checkpoint after a restart, "never" does not; None: not given.
    resume: Literal["auto", "never"] | None = None
    async_checkpoint: bool | None = None  # whether Trainer's checkpoints are written in the background; None: not given
    stall: float | None = None  # end the job after so many seconds without a sign of life; None: never
    balance: bool | None = None  # whether the ranks' shares of a step follow their speeds; None: not given
    checkpoint_on_signal: bool = False  # whether a Trainer saves a checkpoint before a signal ends the job
    record: Path | None = None  # the file of the run record; None: not given
    target: str | None = None  # the program that cpudist-train runs
    metrics_port: tuple[str, int] | None = None  # address and port where rank 0 serves figures for Prometheus
    timeline: Path | None = None  # the file for a trace of all ranks
    steps: tuple[int, int] | None = None  # the trace's first optimizer step, and the first step after the trace
    from_flags: bool = False  # whether messages name options as flags (--compress) instead of arguments (compress=)

    @classmethod
    def from_given(cls, given: Mapping[str, Any], **more: Any) -> Self:
        """Return the options that `given`, arguments or flags by name, contains; those in `more` take precedence."""
        return cls(**{one.name: given[one.name] for one in fields(cls) if one.name in given.keys() - more}, **more)

    def __post_init__(self) -> None:
        for name in ("timeout", "stall"):
            if (seconds := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_timeout(seconds, self._name(name)))
        if self.compress is not None:
            check_scheme(self.compress, self.written("compress"))
        if self.resume not in (None, *RESUME):
            raise UserError(f"{self.written('resume')} is not known; give {' or '.join(RESUME)}")
        if self.metrics_port is not None and find_spec("prometheus_client") is None:
            raise UserError("--metrics-port needs prometheus-client; install it with: pip install 'cpudist[metrics]'")
        if self.steps is not None and self.timeline is None:
            raise UserError("--steps says which steps --timeline records; give --timeline FILE, too")

    @property
    def limit(self) -> float:
        """The limit of the start and of every collective in seconds: `timeout`, or 300."""
        return 300.0 if self.timeout is None else self.timeout

    @property
    def resumes(self) -> bool:
        """Whether a training resumes from this run's newest checkpoint after a restart."""
        return self.resume != "never"

    def written(self, name: str) -> str:
        """Return the option `name` with its value as the user wrote it: "--compress int8", or "compress='int8'"."""
        value = getattr(self, name)
        return f"{self._name(name)} {value}" if self.from_flags else f"{name}={value!r}"

    def for_backend(self, name: str, is_main_process: bool) -> Self:
        """Return these options without backend options that have no effect on `name`; report them in one line.

        Those belong to other backends or need an unset option. Flags and unknown options stay; `configure` checks them.
        """
        given = self.backend_options
        if self.from_flags or not given:  # avoid the import of all backends
            return self
        backend = backends.get(backends.AUTO[0] if name == "auto" else name)
        known = {option.name for plugin in backends.plugins().values() for option in plugin.options}
        own = {option.name for option in backend.options if not option.needs or given.get(option.needs)}
        kept = {name: value for name, value in given.items() if name in own or name not in known}
        if is_main_process and (without := [name for name in given.keys() - kept.keys() if given[name]]):
            say(f"{', '.join(sorted(without))} has no effect on the backend {backend.name} as it is used here")
        return replace(self, backend_options=kept)

    def filled_from(self, later: Self) -> Self:
        """Return these options, with unset options of `_LATE` taken from a script's options `later`."""
        unset = [name for name in _LATE if getattr(self, name) is None]
        return replace(self, **{name: getattr(later, name) for name in unset})

    def too_late(self, later: Self, here: Mapping[str, Any]) -> list[str]:
        """Return the script's options in `later` that a running job cannot change and that differ from its own, `here`.

        They are interface, pinning and backend options that the user has not set, each as the script wrote it.
        """
        asked = {**later.backend_options, "interface": later.interface, "pin": None if later.pin else False}
        given = {name for name, value in {**self.backend_options, "interface": self.interface}.items() if value}
        late = (name for name, value in asked.items() if name not in given and value not in (None, here[name]))
        return [f"{name}={asked[name]!r}" for name in late]

    def _name(self, name: str) -> str:
        return f"--{name.replace('_', '-')}" if self.from_flags else name
