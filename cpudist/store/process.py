"""Start and end the process that serves the job's store."""

import json
import selectors
import shlex
import subprocess
from contextlib import suppress

from cpudist.errors import UserError
from cpudist.processes.procfs import python_main

_START_SECONDS = 60.0
_END_SECONDS = 1.0
# -I ignores modules in the working folder and on PYTHONPATH, which may shadow Python's. -S skips site to start faster.
_COMMAND = python_main("cpudist.store.server", "-I", "-S")


class StoreProcess:
    """The job's store in a child process, which ends when this process ends.

    Args:
        addresses: addresses to listen on; empty: all of this machine.
        port: port to listen on; 0: any free port. A port that is taken raises `UserError`.
        keepalive_timeout: seconds after which a silent client is treated as unreachable.
    """

    def __init__(self, addresses: list[str], port: int, token: bytes, keepalive_timeout: float) -> None:
        self._process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # survives a kill of rank 0's process group, to report it to the other ranks
        )
        # Other users can read arguments, so the token is sent through standard input.
        options = {"token": token.hex(), "addresses": addresses, "port": port, "keepalive_timeout": keepalive_timeout}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        with suppress(BrokenPipeError):
            self._stdin.write(json.dumps(options) + "\n")
            self._stdin.flush()
        try:
            answer = self._answer()
        except BaseException:  # also KeyboardInterrupt in a notebook: leave no process behind
            self._process.kill()
            self.close()
            raise
        if not answer.isdigit():
            self.close()
            where = f"port {port} of {', '.join(addresses) or 'this host'}"
            why = f"rank 0 cannot serve the job's store at {where}: {answer.removeprefix('error ')}"
            raise UserError(f"{why}; choose another port (MASTER_PORT), or wait until the job that uses it has ended")
        self.port = int(answer)

    def _answer(self) -> str:
        """Return the child's first line; raise `UserError` if there is none."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            answered = bool(selector.select(_START_SECONDS))
        answer = self._stdout.readline().strip() if answered else ""
        if not answer:
            why = f"rank 0 cannot start the job's store{'' if answered else f' within {_START_SECONDS:g} s'}"
            raise UserError(f"{why}; to see why, run: {shlex.join(_COMMAND)} </dev/null")
        return answer

    def close_in_child(self) -> None:
        """Close this end of the pipes in a forked child; otherwise the store would run as long as the child."""
        self._stdin.close()
        self._stdout.close()

    def close(self) -> None:
        """Make the child exit as soon as no client is connected; wait for the exit at most a second."""
        self.close_in_child()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
