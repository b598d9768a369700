"""Which versions of other people's packages are known here."""

from __future__ import annotations

from types import ModuleType

from cpudist.errors import UserError

TRANSFORMERS = (range(4, 6), "transformers>=4.57.6,<6")
ACCELERATE = (range(1, 2), "accelerate>=1.15,<2")


def check_known(module: ModuleType, known: bool, versions: tuple[range, str]) -> None:
    """Refuse a package that is not what it was when its patch was written.

    Args:
        module: a module of the package.
        known: whether it has the parts that are to be changed, with the parameters that are expected.
        versions: the major versions that are known, and what pip is to install instead of others.

    Raises:
        UserError: names the version that is installed and a `pip install` that mends it.
    """
    package = __import__(module.__name__.partition(".")[0])
    majors, remedy = versions
    if not known or int(package.__version__.partition(".")[0]) not in majors:
        raise UserError(
            f"cpudist does not know {package.__name__} {package.__version__} and cannot keep it on the job's process "
            f"group; pip install '{remedy}'"
        )
