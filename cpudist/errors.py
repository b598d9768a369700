"""The error that users can mend.

Everything that a user can cause (a wrong option, a missing package, variables that contradict each other) is
raised as `UserError` with one line that names the cause and the remedy. The command line prints that line and
exits with status 2; no traceback is shown.
"""

USER_ERROR = 2  # exit status


class UserError(Exception):
    """A one-line message that names the cause and the remedy; exit status 2 on the command line."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in a cell, in the place of a traceback."""
        return [f"cpudist: {self}"]


class StartupTimeout(UserError):
    """A rank did not arrive within the time limit while the job was starting."""
