"""Errors that users can correct.

An error that a user can cause (a wrong option, a missing package, contradicting variables) is a `UserError`: one line
with cause and remedy. The command line prints this line without a traceback and exits with status 2.
"""

USER_ERROR = 2  # the exit status of the command line
FAILED = 1  # the exit status of a failed job


class UserError(Exception):
    """A one-line message, "CAUSE; REMEDY"; exit status 2 on the command line.

    Examples:
        >>> try:
        ...     cpudist.Checkpoints("out", keep=0)
        ... except cpudist.UserError as error:
        ...     print(error)
        keep must be a whole number of checkpoints from 1 on, not 0
    """

    def _render_traceback_(self) -> list[str]:
        """Return the text that IPython shows in a cell instead of a traceback."""
        return [f"cpudist: {self}"]


def cause_and_remedy(line: str) -> tuple[str, str]:
    """Split the line of a `UserError` into its cause and its remedy."""
    cause, _, remedy = line.partition("; ")
    return cause, remedy


def expect(what: str, value: object, *kinds: type) -> None:
    """Raise UserError unless `value` is an instance of one of `kinds`; the message calls it `what`."""
    if not isinstance(value, kinds):
        types = " or ".join(kind.__name__ for kind in kinds)
        raise UserError(f"{what} must be of type {types}, not {type(value).__name__}")


class StartupTimeout(UserError):
    """A rank did not arrive within the time limit while the job was starting. Exit status 1: a restart may help.

    Examples:
        >>> try:
        ...     world = cpudist.init(timeout=60)
        ... except cpudist.StartupTimeout:
        ...     sys.exit("a rank did not come within a minute")
    """
