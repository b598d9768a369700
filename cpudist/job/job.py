"""The running job: one object owns everything that belongs to it, and takes all of it back when it ends."""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from cpudist import backends
from cpudist.backends import Backend
from cpudist.changes import Changes
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.job import failure, pinned
from cpudist.job.interface import interface_variables
from cpudist.job.members import pinning_of, see_who_is_where
from cpudist.job.record import Exit, RunRecord
from cpudist.job.stall import summary
from cpudist.job.watch import RanksMissing, Watch, name_of
from cpudist.job.whereabouts import here
from cpudist.machine.identity import interface_of
from cpudist.rendezvous import exchange, meet
from cpudist.stacks.answer import Answers
from cpudist.world import World

if TYPE_CHECKING:
    from torch.distributed import Store

    from cpudist.environments import Environment
    from cpudist.pinning import Pinning


class Job:
    """One job as this process takes part in it.

    Attributes:
        world: this rank's place among the others.
        environment: what started the job.
        interface: the network interface that the user has chosen; None: any.
        meeting: the store that all ranks share, and where it is.
        timeout: the bound on every collective, in seconds; `set_timeout` changes it.
        backend: what the ranks work together on.
        record: what is known of the run, for rank 0 to write.
        changes: what the job has changed in the environment and in other packages; `leave` takes it back.
        pinning: what this rank was given of its node; None where it was left alone.
        held: whether `cpudist-train` has started the job and will end it; `cpudist.shutdown` then leaves it alone.
    """

    world: World
    backend: Backend
    record: RunRecord

    timeout: float

    def __init__(self, environment: Environment, interface: str | None = None) -> None:
        self.environment = environment
        self.interface = interface
        self.changes = Changes()
        self.pinning: Pinning | None = None
        self.held = False
        self.started = False
        self._placement = environment.placement()
        self._watch: Watch | None = None
        self._answers: Answers | None = None

    def come_up(self, backend: str, timeout: float, options: Mapping[str, Any], attempt: str) -> None:
        """Meet the other ranks, agree with them on a backend and start it; `attempt` is the same text on all ranks."""
        self.timeout = timeout
        for name, value in interface_variables(self.interface).items() if self.interface else ():
            self.changes.default_variable(name, value)
        with self.changes.environment():
            self.meeting = meet(self.environment.rendezvous(), self._placement, attempt, timeout, self.interface)
            self.changes.then(self.meeting.close)
            self.world, members = see_who_is_where(self.environment, self._ask_everyone)
            if not any(member.interactive for member in members):
                self._watch_the_others([member.host for member in members])
            self._answer_who_asks()
            self._start_backend(backend, options)
        for name, value in {**self._variables(), **self.backend.variables()}.items():
            self.changes.variable(name, value)
        self.record = RunRecord(self.world, self.backend, pinning_of(members), self.environment.restarts)
        self.record.network = {"interface": interface_of(self.meeting.host), "address": self.meeting.host}
        if self._watch is not None:
            self._watch.backend = self.backend
            self._watch.on_failure = self._record_failure
        self.started = True

    def leave(self, exit: Exit = "completed") -> None:
        """Wait for the other ranks, then take everything back; `exit` goes into the record."""
        self.finish()
        self.record.write(exit)
        self.abandon()

    def finish(self) -> None:
        """Come to a good end together with the other ranks; does nothing when that has been done."""
        if self._watch is not None:
            try:
                self._watch.finish()
            except RanksMissing as error:
                self.fail(error, lambda _error: None)

    def _end_with_process(self) -> None:
        """At exit. An exception that has gone past our hook, as with one that replaces it, is no good end."""
        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException):
            self.fail(error, lambda _error: None)
        self.finish()

    def abandon(self) -> None:
        """Take everything back without waiting for anybody."""
        global _job
        _job = None
        self.changes.undo()

    def set_timeout(self, seconds: float) -> None:
        """Bound every collective of the job from now on, on this rank.

        Raises:
            UserError: the backend cannot change its limit.
        """
        if seconds != self.timeout:
            self.backend.set_timeout(seconds)
            self.timeout = seconds
            if self._watch is not None:
                self._watch.timeout = seconds

    def check_backend(self, name: str | None) -> str:
        """The job's backend, if that is what a script asks for by `name`; None stands for any.

        Raises:
            UserError: the script asks for another one.
        """
        if name not in (None, self.world.backend):
            remedy = f"give cpudist-train --backend {name}, or leave it" if name in backends.names() else "leave it"
            raise UserError(
                f"the script asks for the backend {name}, but the job runs on {self.world.backend}; {remedy} out there"
            )
        return self.world.backend

    def fail(
        self, error: BaseException, show: failure.Show = traceback.print_exception, rank: int | None = None
    ) -> NoReturn:
        """End the job on every rank because of `error`; see `failure.fail`."""
        failure.fail(error, self._watch, show, rank, self._record_failure)

    def _record_failure(self) -> None:
        if self.started:
            self.record.write("failed")

    def _watch_the_others(self, hosts: Sequence[str]) -> None:
        if self.meeting.place is not None:
            self._watch = Watch(self.world, hosts, self.meeting.place, self.timeout)
            self.changes.then(self._watch.stop)
        self.changes.attribute(sys, "excepthook", failure.excepthook(self.fail))
        atexit.register(self._end_with_process)
        self.changes.then(lambda: atexit.unregister(self._end_with_process))

    def _answer_who_asks(self) -> None:
        """From here on `cpudist stacks` finds this rank."""

        def where() -> str:
            return summary(here(self.world, getattr(self, "backend", None)))

        job = f"{self.world.hosts[0]}:{self.meeting.port}"
        try:
            self._answers = Answers(job, self.world.rank, self.world.size, name_of(self.world), where)
        except OSError as error:
            say(f"warning: cpudist stacks will not find {name_of(self.world)}: {error.strerror}")
            return
        self.changes.then(self._answers.stop)

    def disown_child(self) -> None:
        """In a forked child: it is no rank of the job, and how it ends does not concern the others."""
        if self._answers is not None:
            self._answers.close()
            self._answers = None
        if self._watch is not None:
            self._watch.disown()
            self._watch = None
            sys.excepthook = sys.__excepthook__
            atexit.unregister(self._end_with_process)
        if self.meeting.server is not None:
            self.meeting.server.disown()

    def _start_backend(self, name: str, options: Mapping[str, Any]) -> None:
        backend = backends.choose(name, self._ask_everyone, self.world.rank == 0, options)
        self.start_on(backend, self.meeting.store)
        self.changes.then(backend.stop)
        self.backend = backend
        self.world = replace(self.world, backend=backend.name, device_type=backend.device().type)

    def start_on(self, backend: Backend, store: Store) -> None:
        """Start `backend` for this job's ranks, which meet in `store`."""
        hook = sys.excepthook
        try:
            backend.start(self.world, store, self.timeout)
        finally:
            sys.excepthook = hook  # init_process_group puts one around it that withholds output

    def _ask_everyone(self, key: str, value: str) -> list[str]:
        """Tell all ranks this one's value under a new key; returns the values of all, in rank order."""
        me = self._placement
        return exchange(self.meeting.store, me.rank, me.size, f"init/{key}", value, self.timeout)

    def _variables(self) -> dict[str, str]:
        """What accelerate, transformers, datasets and others read."""
        return {
            "RANK": str(self.world.rank),
            "WORLD_SIZE": str(self.world.size),
            "LOCAL_RANK": str(self.world.local_rank),
            "LOCAL_WORLD_SIZE": str(self.world.local_size),
            "MASTER_ADDR": self.meeting.host,
            "MASTER_PORT": str(self.meeting.port),
        }


_job: Job | None = None  # the one place where a job's state hangs
_attempts = itertools.count()  # how often this process has started a job; the same on all ranks


def _after_fork_in_child() -> None:
    if _job is not None:
        _job.disown_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


def start_job(
    environment: Environment,
    backend: str,
    timeout: float,
    options: Mapping[str, Any] | None = None,
    interface: str | None = None,
    pinning: Pinning | None = None,
) -> Job:
    """Start the job that `environment` describes; every rank calls it.

    Args:
        environment: what started this process.
        backend: a backend's name, or "auto".
        timeout: bound on the start and on every collective, in seconds.
        options: the backend's own; see `Backend.configure`.
        interface: the network interface that the ranks meet over and send over; None: any.
        pinning: this rank's cores and threads; None leaves it where it is.

    Raises:
        UserError: the environment's variables contradict each other or MPI, the backend cannot be used, or a process
            group exists that cpudist did not make.
        StartupTimeout: a rank did not arrive in time; the message names it.
    """
    global _job
    import torch.distributed as dist

    if timeout <= 0:
        raise UserError(f"the timeout must be a positive number of seconds, not {timeout}")
    if _job is not None:  # an earlier one that did not come up
        _job.abandon()
    if dist.is_initialized():
        raise UserError("torch.distributed is initialised already; call cpudist.init() instead of init_process_group()")
    _job = job = Job(environment, interface)
    job.pinning = pinning and pinned.follow(pinning, job.changes)
    job.come_up(backend, timeout, options or {}, attempt=str(next(_attempts)))  # a store may outlive a job
    if job.pinning is not None:
        job.pinning.settle(job.changes)
    return job


def current() -> Job | None:
    """The running job; None where there is none."""
    return _job if _job is not None and _job.started else None


def require() -> Job:
    """The running job.

    Raises:
        UserError: there is none.
    """
    job = current()
    if job is None:
        raise UserError("there is no running job in this process; call cpudist.init() first")
    return job


def fail(error: BaseException, show: failure.Show = traceback.print_exception, rank: int | None = None) -> NoReturn:
    """End the job, running or just starting, because of `error`, and this process; see `failure.fail`."""
    if _job is not None:
        _job.fail(error, show, rank)
    failure.fail(error, None, show, rank)
