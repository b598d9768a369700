"""Starts and ends the process that serves the job's store."""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from cpudist.errors import UserError

_START_SECONDS = 60.0
_END_SECONDS = 1.0
_PROGRAM = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); "
    "from cpudist.rendezvous.serve import main; main()"
)


class StoreProcess:
    """The job's store, served by a child of this process; the child ends when this one does.

    Args:
        addresses: where it listens; everywhere if there are none.
        port: 0 for any that is free.
        token: what clients must know.
        silence: seconds after which a client that the network no longer reaches counts as gone.

    Raises:
        UserError: it cannot listen there.
    """

    def __init__(self, addresses: list[str], port: int, token: bytes, silence: float) -> None:
        # By standard input, where nobody else sees the token. Standard error is the job's.
        self._process = subprocess.Popen(
            # Isolated: modules in the working folder, or where PYTHONPATH leads, may have the names of Python's own.
            [sys.executable, "-I", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a launcher that kills rank 0's group leaves it the seconds to tell the others
        )
        wishes = {"token": token.hex(), "addresses": addresses, "port": port, "silence": silence}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._said, self._says = self._process.stdin, self._process.stdout
        with suppress(BrokenPipeError):
            self._said.write(json.dumps(wishes) + "\n")
            self._said.flush()
        try:
            answer = self._answer()
        except BaseException:  # also an interrupted cell's: it is not to be left behind
            self._process.kill()
            self.close()
            raise
        if not answer.isdigit():
            self.close()
            where = f"port {port} of {', '.join(addresses) or 'this host'}"
            raise UserError(
                f"rank 0 cannot serve the job's store at {where}: {answer.removeprefix('error ')}; "
                "choose another port (MASTER_PORT), or wait until the job that has it is over"
            )
        self.port = int(answer)

    def _answer(self) -> str:
        """What it says first. This process may be a notebook's kernel, so not to hear it is an error, and no end."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._says, selectors.EVENT_READ)
            heard = bool(selector.select(_START_SECONDS))
        answer = self._says.readline().strip() if heard else ""
        if not answer:
            raise UserError(
                f"rank 0 cannot start the job's store{'' if heard else f' within {_START_SECONDS:g} s'}; see why:"
                f" {sys.executable} -I -c '{_PROGRAM}' </dev/null"
            )
        return answer

    def disown(self) -> None:
        """In a forked child: the store must not live for as long as the child does."""
        self._said.close()
        self._says.close()

    def close(self) -> None:
        """Let it end as soon as the others have gone."""
        self.disown()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
