"""Copy all output of this rank to a file (`--log-dir`)."""

import atexit
import os
import subprocess
from pathlib import Path

from cpudist.console import flush_output
from cpudist.errors import UserError

_END_SECONDS = 5.0  # Longest wait for the last lines: the reader of our output may block.


def log_output(folder: Path, rank: int, *, again: bool) -> None:
    """Copy standard output and standard error of this process, and of its children, to a file from now on.

    Two processes of `tee` copy it: they also get the output of C code, and the last lines of a process that is killed.

    Args:
        folder: gets the file ``rank-N.log``, N being the rank.
        again: whether to append to the file, since the job has been restarted.

    Raises:
        UserError: the file cannot be written.
    """
    file = folder / f"rank-{rank}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.open("ab" if again else "wb").close()
    except OSError as error:
        raise UserError(f"cannot write {file} ({error.strerror}); give another --log-dir") from None
    flush_output()
    copies = []
    for stream in (1, 2):
        shown = os.dup(stream)
        # In a session of its own: Ctrl-C and a launcher's signals to the rank's whole group must not end it.
        tee = subprocess.Popen(["tee", "-a", file], stdin=subprocess.PIPE, stdout=stream, start_new_session=True)
        assert tee.stdin is not None
        with tee.stdin as pipe:
            os.dup2(pipe.fileno(), stream)
        copies.append((tee, stream, shown))
    atexit.register(_finish, copies, os.getpid())


def _finish(copies: list[tuple[subprocess.Popen[bytes], int, int]], pid: int) -> None:
    """Show the rest of the output before this process ends; not in a forked child, which has the same `copies`."""
    if os.getpid() != pid:
        return
    flush_output()
    for tee, stream, shown in copies:
        os.dup2(shown, stream)
        try:
            tee.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # a child of this process still writes
            continue
