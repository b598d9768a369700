"""The running job: one object owns its state, and undoes all of the job's changes when it ends."""

import itertools
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import NoReturn

import torch
from torch.distributed import Store

from cpudist import backends
from cpudist.backends import Backend
from cpudist.backends.interface import with_defaults
from cpudist.balance.agreed import Balance
from cpudist.balance.sampler import follow_loaders
from cpudist.console import option, say
from cpudist.errors import UserError
from cpudist.job import ddp_models
from cpudist.job.job_options import JobOptions
from cpudist.job.rank_context import RankContext
from cpudist.job.script_groups import check_backend
from cpudist.launchers import Launcher, one_world
from cpudist.observability.likely_mistakes import ComputingChildren, UnsynchronizedRanks
from cpudist.observability.observers import Observers
from cpudist.observability.pace import PaceMeter
from cpudist.observability.record import Exit, RunRecord
from cpudist.observability.stragglers import Stragglers
from cpudist.patching.patch import apply
from cpudist.patching.undo import Changes
from cpudist.pinning import Pinning
from cpudist.pinning.plan import THREADS
from cpudist.processes.attempt import SHARES
from cpudist.rendezvous import StoreGroup, awaited
from cpudist.supervision import failure
from cpudist.supervision.failure import INTERRUPTED
from cpudist.supervision.stall import Stall
from cpudist.supervision.step_counter import StepCounter
from cpudist.topology.identity import INTERFACE_VARIABLES, interface_of
from cpudist.waiting import announced
from cpudist.world import World


class Job:
    """One job in this process, with a backend that has started."""

    def __init__(self, context: RankContext, backend: Backend, options: JobOptions, pinning: Pinning | None) -> None:
        self._context = context
        self.backend = backend
        self.options = options
        self.pinning = pinning  # this rank's CPUs and threads; None where it is not pinned
        # Whether `run_target` ends the job (cpudist-train, notebooks); a script's `cpudist.shutdown` then does nothing.
        self.ended_by_run_target = False
        self._stall: Stall | None = None
        self.overruled: set[str | None] = set()  # the backends that the script has asked for; each is reported once
        self.launcher = context.launcher
        self.changes = context.changes  # of the environment and of other packages; the job's end undoes them
        self.store = context.rendezvous.store
        self.heartbeat = context.heartbeat
        self.world = replace(context.world, backend=backend.name, device_type=backend.devices.type)
        self.members = context.members  # each rank's published description of itself, in rank order
        self.restarts = max(member.restarts for member in self.members)  # the ranks' launchers may count differently
        run_ids = [item for member in self.members for item in member.run_ids.items()]
        # Names of this run that a restart does not change (empty if the launcher gives none), and those of them that an
        # earlier attempt may have had.
        self.run_ids = list(dict(run_ids))
        self.earlier_run_ids = frozenset(name for name, earlier in run_ids if earlier)
        self.counter = StepCounter(self.changes)  # the steps and batches of this rank
        self.balance = Balance(self.world.rank, self.world.size, self.store, self.changes)  # the shares of all ranks
        self._follow_speeds()
        follow_loaders(self.balance, self.counter)
        self.statuses = context.statuses  # returns the newest status of each rank; any thread may call it
        self.record = RunRecord(self)
        self.ddp_models = ddp_models.DdpModels(backend, self.world, self.record, self.balance.add_model)
        apply(ddp_models.PATCHES, self.ddp_models, self.changes)
        if options.compress is not None:
            self.ddp_models.set_compression(options.compress, options.written("compress"))
        host = context.rendezvous.host
        self.record.network = {"interface": interface_of(host), "address": host}
        self._observe()
        context.on_end = self.finish
        if options.stall is not None:
            self._end_when_stalled(options.stall)
        if options.record is not None:
            self.record.write_to(options.record)
        context.on_failure = lambda status: self.record.write("interrupted" if status == INTERRUPTED else "failed")
        context.started.set()

    def _observe(self) -> None:
        self._context.pace = PaceMeter(self, self.record)
        if self._context.stacks is not None:
            self._context.stacks.figures = self._context.pace.figures
        self.observers = Observers()
        self.counter.after_step.append(self.observers.step)
        self.observers.add(self._context.pace)
        self.observers.add(self.record)
        self.observers.add(UnsynchronizedRanks(self))
        if self.world.rank == 0 and self._context.watch is not None:
            self.observers.add(Stragglers(self, self.record))
            self.observers.add(ComputingChildren())
            self.heartbeat.add(self.observers.beat)

    def _end_when_stalled(self, seconds: float) -> None:
        context = self._context
        if context.interactive:
            say("warning: stall has no effect in a notebook or an interactive session")
            return
        own_host = self.members[self.world.rank].host
        self._stall = Stall(
            seconds,
            self.world,
            self.heartbeat,
            self.counter,
            self.backend.progress,
            explain=list if context.watch is None else context.watch.waits.explain,
            show=(lambda: None) if context.stacks is None else context.stacks.show,
            neighbours=[rank for rank, member in enumerate(self.members) if member.host == own_host],
            show_others=context.show_stacks_of,
            before_end=lambda: self.record.write("failed"),
            changes=self.changes,
        )

    @property
    def timeout(self) -> float:
        """The limit of every collective and every wait in the store, in seconds; `set_timeout` changes it."""
        return self._context.timeout

    def finish(self, exit: Exit = "completed") -> None:
        """Wait for the other ranks, and write the record with `exit`."""
        self.observers.end()
        self._context.wait_for_all()
        if self._stall is not None:
            self._stall.stop()
        if self.world.rank == 0:
            self.record.note_waiting()
        self.record.write(exit)

    def shutdown(self, exit: Exit = "completed") -> None:
        """Finish, and undo all changes."""
        self.finish(exit)
        _forget()

    def end_of_script(self) -> None:
        """Shut down, as the script asks; if `run_target` ends the job, only note the line, for status reports."""
        if self.ended_by_run_target:
            self._context.note_line()
        else:
            self.shutdown()

    def finish_before_end(self, wait: Callable[[], None]) -> None:
        """Call `wait` before this rank reports that it has finished; `wait` must return at once when called again."""
        self._context.unfinished.append(wait)

    def set_timeout(self, seconds: float) -> None:
        """Set `timeout` to a result of `check_timeout`; raise `UserError` if the backend cannot change its limit."""
        if seconds != self.timeout:
            self.backend.set_timeout(seconds)
            self.store.set_timeout(timedelta(seconds=seconds))
            self._context.timeout = seconds

    def take(self, options: JobOptions) -> None:
        """Take the options of a script's own `cpudist.init` that the job was not given, or raise UserError."""
        if options.backend not in ("auto", self.world.backend):
            if not self.ended_by_run_target:
                raise UserError(f"cpudist is already running on {self.world.backend}; call cpudist.shutdown() first")
            check_backend(self, options.backend, joins=False)
        options = options.for_backend(self.world.backend, self.world.rank == 0)
        with_defaults(self.world.backend, self.backend.options, options.backend_options)  # checks them
        here = {"interface": self.record.network["interface"], "pin": self.pinning is not None}
        late = self.options.too_late(options, {**self.backend.configured, **here})
        if late and self.world.rank == 0:
            start = "cpudist-train" if self.options.from_flags else "the call that starts it"
            say(f"warning: {', '.join(late)} comes too late, since the job has started; give it to {start}")
        if options.timeout is not None and self.options.timeout is None:
            self.set_timeout(options.timeout)
        if options.compress is not None and self.ddp_models.compression is None:
            self.ddp_models.set_compression(options.compress, options.written("compress"))
        if options.stall is not None and self.options.stall is None:
            self._end_when_stalled(options.stall)
        self.options = self.options.filled_from(options)
        self._follow_speeds()

    def _follow_speeds(self) -> None:
        if not self.options.balance or self.balance.follows_speeds:
            return
        self.balance.follow_speeds(os.environ.get(SHARES))
        if self.world.device_type != "cpu" and self.world.rank == 0:
            say(f"warning: {option('balance')} changes nothing on {self.world.backend}")

    def restart_backend(self, store: Store) -> None:
        """Start the backend again after `destroy_process_group`, with a `store` whose keys are unused."""
        group = StoreGroup(store, self.world.rank, self.world.size, self.timeout)
        group.all_gather("again", "", f"starting {self.backend.name} again")
        _start(self.backend, self.world, store, self.timeout)


# Module state: the current job; during start-up this rank's context and undo stack.
_changes: Changes | None = None
_context: RankContext | None = None
_job: Job | None = None
_attempts = itertools.count()  # Counts the starts of jobs in this process; the count is the same on every rank.


def start_job(launcher: Launcher, options: JobOptions, pinning: Pinning | None = None) -> Job:
    """Start the job that `launcher` describes; every rank calls it.

    Raises:
        UserError: the launcher's variables contradict each other or MPI, the backend cannot be used, or a process group
            exists that cpudist did not make.
        StartupTimeout: a rank did not arrive in time; the message names it.
    """
    global _changes, _context, _job
    options = options.for_backend(options.backend, launcher.is_main_process)
    _forget()  # undo the changes of an earlier job whose start failed
    if torch.distributed.is_initialized():
        raise UserError("torch.distributed is initialised already; call cpudist.init() instead of init_process_group()")
    _changes = changes = Changes()
    pinning = pinning and _pinned(pinning, changes)
    for name in INTERFACE_VARIABLES if options.interface else ():
        changes.default_variable(name, options.interface or "")
    # If Triton is installed, importing torch's compiler starts one process per core in every rank, and extensions of
    # torch import the compiler. With this variable the processes start at the first compilation by Triton.
    changes.default_variable("TORCH_WARM_POOL", "0")
    with changes.environment():
        attempt = str(next(_attempts))  # separates the keys of this job from an earlier job's
        _context = context = RankContext(launcher, attempt, options.limit, options.interface, changes)
        chosen = backends.choose(options.backend, options.backend_options, context.all_gather, context.world.rank == 0)
        _start(chosen, context.world, context.rendezvous.store, options.limit)
        changes.then(chosen.stop)
        context.backend = chosen
        context.end_first()
    job = Job(context, chosen, options, pinning)
    where = {"MASTER_ADDR": context.rendezvous.host, "MASTER_PORT": str(context.rendezvous.port)}
    for name, value in (one_world.describing(context.world.placement, os.environ) | where).items():
        changes.variable(name, value)
    chosen.change_libraries(changes)
    _job = job
    return job


def current() -> Job | None:
    """Return the running job; None if no job runs."""
    return _job


def require() -> Job:
    """Return the running job, or raise `UserError`."""
    if _job is None:
        raise UserError("there is no running job in this process; call cpudist.init() first")
    return _job


def fail(error: BaseException, show: failure.Show = traceback.print_exception, rank: int | None = None) -> NoReturn:
    """End this process and its job, which may still be starting, because of `error`; see `failure.fail`."""
    if _context is not None:
        _context.fail(error, show, rank)
    failure.fail(error, None, show, rank)


def waited_for(error: BaseException) -> list[str]:
    """Return sentences about the ranks that have caused a collective's error here, most likely cause last."""
    return failure.waited_for(error, None if _context is None else _context.watch)


def _forget() -> None:
    """Undo all changes of the running job, or of a job whose start failed."""
    global _changes, _context, _job
    changes, _changes, _context, _job = _changes, None, None, None
    if changes is not None:
        changes.undo()


def _pinned(pinning: Pinning, changes: Changes) -> Pinning:
    """Set torch's number of threads and bind this rank, until `changes` are undone; return the new state."""
    before, threads = torch.get_num_threads(), pinning.plan.omp_threads
    changes.variable(THREADS, str(threads))  # for child processes of the rank
    if before != threads:
        torch.set_num_threads(threads)
        changes.then(lambda: torch.set_num_threads(before))
    return pinning.bind(changes)


def _start(backend: Backend, world: World, store: Store, timeout: float) -> None:
    def line() -> str:
        first = store.add("connecting/late", 1) == 1
        return f"{backend.name} is connecting all ranks: waiting for {awaited()}" if first else ""

    hook = sys.excepthook
    try:
        with announced(line, timeout):
            backend.start(world, store, timeout)
    finally:
        sys.excepthook = hook  # init_process_group replaces it by a hook that withholds output


os.register_at_fork(after_in_child=lambda: None if _context is None else _context.close_in_child())
