"""Watch the other ranks of a running job, and end this rank with them.

Every rank publishes its status in the job's store at each heartbeat, and learns of failures and losses from the store
at once (heartbeat.py). The watch ends ranks where no launcher does: under srun without MPI, in pods, on the other hosts
of a torchrun job, and on both sides of a link that is down.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from cpudist.console import option, say
from cpudist.processes.attempt import JOB_ID
from cpudist.processes.ending import after_last_line
from cpudist.processes.lost_ranks import LostRank, SilentHosts, tell_launch
from cpudist.store import Address, Connection, StoreLost
from cpudist.supervision import rank_texts
from cpudist.supervision.abort import LAUNCHER_SECONDS, abort, end_launcher_after
from cpudist.supervision.heartbeat import Heartbeat
from cpudist.supervision.long_waits import LongWaits
from cpudist.supervision.rank_status import RankStatus, publish, published
from cpudist.world import World, name_of

CLAIMS = "failure/claims"  # counter; the rank that makes it 1 reports the failure
REPORTED = "failure/reported"  # the exit status, set once the report is on screen
_RECORDED = "failure/recorded"  # set once rank 0 has written the run record
_LOST = "lost"  # one line for each rank whose connection broke: "RANK ended" or "RANK unreachable"
_FINISHED = "finished"  # counter of the ranks that have finished
_ALL_FINISHED = "finished/all"
_RANK_0_FINISHED = "finished/0"  # set once rank 0, whose process may serve the store, has finished
_MAY_LEAVE = "finished/leave"  # set by rank 0
_LEFT = "left/{rank}"  # set once this rank no longer watches the others

_STORE_SECONDS = 5.0
_FOLLOW_SECONDS = 1.0  # Other ranks end this much later than the failed one: launchers report the rank that ends first.
_RANK_0_TIMEOUTS = 10  # The other ranks wait so many timeouts for rank 0, which may still save or upload a model.
GRACE_SECONDS = 3.0  # Time for another rank to print or write before this rank ends the job.


class RanksMissing(RuntimeError):
    """Ranks have not finished in time; the message names them."""


class Watch:
    """Ends this rank together with the others; made right after the rendezvous.

    Args:
        status: returns this rank's status; takes `at_end`, whether the script has ended.
        timeout: returns the limit of a collective, in seconds; rank 0 waits as long for other ranks at the end.
    """

    def __init__(
        self,
        world: World,
        hosts: Sequence[str],
        address: Address,
        status: Callable[..., RankStatus],
        heartbeat: Heartbeat,
        timeout: Callable[[], float],
    ) -> None:
        self.world = world
        self._timeout = timeout
        # Called on rank 0 with the job's exit status, before rank 0 ends because of a failure.
        self.on_failure: Callable[[int], None] | None = None
        self.waiting_agent: int | None = None  # see `Launcher.waiting_agent`
        self._hosts = hosts
        self._own_status = status
        # In its own jobs `cpudist launch` itself names the hosts that do not answer.
        names_hosts = world.node_count > 1 and JOB_ID not in os.environ
        self._silent_hosts = SilentHosts(address.keepalive_timeout) if names_hosts else None
        # Names the ranks that keep others waiting.
        self.waits = LongWaits(world, hosts, address, heartbeat.answer_seconds, timeout)
        self._store = Connection(address, timeout())  # used by the main thread
        self._store.on_disconnect(_LOST, str(world.rank))  # registered until `finish` or the end of the process
        self._ending = threading.Lock()
        self._publishing = threading.Lock()  # so that an earlier status cannot replace the final one
        self._at_end = False
        self._first_at_end = False
        self._rank_0_finished = False
        self._heartbeat = heartbeat
        after_last_line.add(self._has_reported)
        heartbeat.listen([REPORTED, _LOST], self._end_with_the_others)
        if self._silent_hosts is not None and world.node_rank == 1 and world.local_rank == 0:
            heartbeat.on_silence(partial(self._silent_hosts.say, hosts[:1]))
        heartbeat.add(self._beat)

    def claim(self) -> bool:
        """Return whether this rank is the first to fail and so reports it; the watch then no longer ends this rank."""
        try:
            first = self._store.add(CLAIMS, 1) == 1
        except StoreLost:  # ranks cannot agree any more: this rank reports
            first = True
        if first:
            self._heartbeat.remove(self._beat)
            self._heartbeat.stop_listening()
        return first

    def end_job(self, status: int, *, reported: bool) -> NoReturn:
        """End this process once the failure is reported and rank 0 has written the run record.

        Args:
            status: the exit status of this process, unless another rank has reported the failure with its own status.
            reported: whether this rank has reported the failure.
        """
        if reported:
            with contextlib.suppress(StoreLost):
                self._store.set({REPORTED: str(status).encode()})
        else:
            with contextlib.suppress(StoreLost):
                self._store.wait_all([REPORTED], GRACE_SECONDS)
                status = _reported_status(self._store, status)
        self._end(self._store, status, first=reported)

    def finish(self) -> None:
        """Wait until all ranks have finished, then stop watching; rank 0, which serves the store, leaves last.

        Raises:
            RanksMissing: on rank 0, another rank has not finished within the timeout; on other ranks, rank 0 has not
                finished within ten timeouts.
        """
        if self._heartbeat.stopped.is_set():
            return
        try:
            self._finish()
        except StoreLost:
            if not self._rank_0_finished:
                self._end_without_store()
        self.stop()

    def stop(self) -> None:
        """Stop the thread. If the thread is ending this process, this call does not return."""
        after_last_line.discard(self._has_reported)
        with contextlib.suppress(StoreLost):
            self._store.cancel_on_disconnect(_LOST, str(self.world.rank))
        self._heartbeat.stop()

    def close(self) -> None:
        if not self._store.closed:
            self.stop()
        self.close_in_child()

    def close_in_child(self) -> None:
        """Close the connection in a forked child; otherwise the store would not notice the end of this rank."""
        after_last_line.discard(self._has_reported)
        self._store.close()

    def _has_reported(self) -> None:
        """Mark the failure as reported: this process has written why it ends, and ends without `end_job`."""
        if self.claim():
            with contextlib.suppress(StoreLost):
                self._store.set({REPORTED: b"1"})
            if self.world.rank == 0 and self.on_failure is not None:
                self.on_failure(1)

    def _finish(self) -> None:
        with self._publishing:
            self._at_end = True
            publish(self._store, self._own_status(at_end=True))  # with the pace of the whole training
        finished = self._store.add(_FINISHED, 1)
        self._first_at_end = finished == 1
        if finished == self.world.size:
            self._store.set({_ALL_FINISHED: b"1"})
        if self.world.rank == 0:
            self._store.set({_RANK_0_FINISHED: b"1"})
            if not self._store.wait_all([_ALL_FINISHED], self._timeout()):
                raise RanksMissing(self._unfinished(self._timeout()))
            self.stop()
            self._store.set({_MAY_LEAVE: b"1"})
            self._store.wait_all([_LEFT.format(rank=rank) for rank in range(1, self.world.size)], _STORE_SECONDS)
        else:
            self._wait_for_rank_0()
            self.stop()
            self._store.set({_LEFT.format(rank=self.world.rank): b"1"})

    def _wait_for_rank_0(self) -> None:
        for number in range(1, _RANK_0_TIMEOUTS + 1):
            if self._store.wait_all([_MAY_LEAVE], self._timeout()):
                self._rank_0_finished = True
                return
            waiting = self._unfinished(number * self._timeout())
            if number == _RANK_0_TIMEOUTS:
                remedy = f"give more time with {option('timeout')}"
                raise RanksMissing(f"{waiting or 'rank 0 does not end the job'}; {remedy}")
            if self.world.rank == 1:
                say(waiting or "all ranks have finished, but rank 0 does not end the job yet")

    def _unfinished(self, seconds: float) -> str:
        return "; ".join(rank_texts.unfinished(published(self._store, self.world.size), seconds))

    def _beat(self, store: Connection | None) -> None:
        """Publish the status; end this process if the store is lost before rank 0 has finished."""
        if store is None:
            if not self._rank_0_finished:
                self._end_without_store()
            return
        self._rank_0_finished = self._rank_0_finished or store.check([_RANK_0_FINISHED])
        self._publish_status(store)
        if self._silent_hosts is not None and self.world.rank == 0:
            silences = store.silences(_LOST)
            self._silent_hosts.report({self._hosts[int(rank)]: seconds for rank, seconds in silences.items()})
        if self._first_at_end:
            self._end_if_deadlocked(store)

    def _end_without_store(self) -> NoReturn:
        self._ending.acquire()  # never released, so that only one thread continues
        if self.world.local_rank == 0:
            why = "that host is down or cut off, or the job was killed there"
            say(f"{name_of(self.world)} lost the job's store, which rank 0 on {self._hosts[0]} keeps: {why}; ending")
            if self.waiting_agent is not None and self.world.node_rank > 0:
                end_launcher_after(LAUNCHER_SECONDS, self.waiting_agent)
        abort(1)

    def _publish_status(self, store: Connection) -> None:
        """Publish the status, and the line that the store prints if no rank reports this one's loss; report waits."""
        with self._publishing:
            status = self._own_status(at_end=self._at_end)
            publish(store, status)
        (loss,) = rank_texts.explain_lost([LostRank("ended", self.world.rank)], {self.world.rank: status}, self._hosts)
        store.report_on_disconnect(_LOST, str(self.world.rank), REPORTED, f"{loss}; the job is over")
        self.waits.report(store, status)

    def _end_with_the_others(self, store: Connection) -> NoReturn:
        """End this process after another rank has failed or was lost.

        The first rank to claim a loss reports it. If that rank is lost before it has reported, the second one reports.
        """
        try:
            claim = 0
            if not store.check([REPORTED]):
                claim = store.add(CLAIMS, 1)
            if claim == 1 or (not store.wait_all([REPORTED], GRACE_SECONDS) and claim == 2):
                statuses = published(store, self.world.size)
                lost = _lost_ranks(store)
                tell_launch([one.rank for one in lost[:1] if one.rank is not None])
                self._report_and_end(store, rank_texts.explain_lost(lost, statuses, self._hosts), first=False)
            self._end(store, _reported_status(store, 1), first=False)
        except StoreLost:
            raise
        except Exception as error:  # noqa: BLE001 - this rank must end in any case
            say(f"{name_of(self.world)} ends with the others, and cannot report why: {error!r}")
            abort(1)

    def _end_if_deadlocked(self, store: Connection) -> None:
        """End the job if ranks wait for a finished rank in a collective; only the first finished rank checks this."""
        found = self.waits.explanation(store)
        if found.deadlocked() and store.add(CLAIMS, 1) == 1:
            self._report_and_end(store, found.sentences(), first=True)

    def _report_and_end(self, store: Connection, sentences: Sequence[str], *, first: bool) -> NoReturn:
        for sentence in sentences:
            say(f"{sentence}; ending the job")
        store.set({REPORTED: b"1"})
        self._end(store, 1, first=first)

    def _end(self, store: Connection, status: int, *, first: bool) -> NoReturn:
        self._ending.acquire()  # never released, so that only one thread continues
        with contextlib.suppress(StoreLost):
            if self.world.rank == 0:
                if self.on_failure is not None:
                    self.on_failure(status)
                store.set({_RECORDED: b"1"})
            elif all(loss.rank != 0 for loss in _lost_ranks(store)):
                store.wait_all([_RECORDED], GRACE_SECONDS)
        if not first:
            time.sleep(_FOLLOW_SECONDS)
        abort(status)


def _lost_ranks(store: Connection) -> list[LostRank]:
    """Return the lost ranks in the order of the server's lines, which are "RANK ended" or "RANK unreachable"."""
    lines = [line.split() for line in (store.get([_LOST]) or [b""])[0].decode().splitlines()]
    return [LostRank("unreachable" if how == "unreachable" else "ended", int(rank)) for rank, how in lines]


def _reported_status(store: Connection, otherwise: int) -> int:
    reported = store.get([REPORTED])
    return int(reported[0]) if reported else otherwise
