"""Open MPI 4, whose launcher is ORTE, and 5, whose launcher is PRRTE."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from cpudist.console import names_of
from cpudist.launchers.launcher import OverMpi
from cpudist.launchers.mpi_launcher import Host, MpiLauncher, MpirunOptions
from cpudist.processes import procfs

_LIBRARY = "libmpi.so.40"  # File name of Open MPI's library from 2.x to 5.x; no MPICH has a library of this name.

# Variables that -x does not name: Open MPI's own, which it passes on itself, and those of mpirun's host or shell.
_NOT_PASSED_ON = {"HOSTNAME", "HOST", "PWD", "OLDPWD", "SHLVL", "_"}
_NOT_PASSED_ON_PREFIXES = ("OMPI_", "OPAL_", "ORTE_", "PMIX_", "PRTE_", "SSH_", "BASH_FUNC_")
# Prefixes of variables of a login and of a terminal, which no rank reads.
_OF_A_LOGIN = ("DBUS_", "GPG_", "LC_", "LOGNAME", "MAIL", "SHELL", "USER", "XDG_")
_OF_A_TERMINAL = ("DISPLAY", "LANG", "LESS", "LS_", "PS1", "TERM")
# Prefixes of variables that training libraries read; a warning names these variables first.
_OF_LIBRARIES = ("CCL_", "HF_", "LD_", "MKL_", "OMP_", "PYTHON", "TORCH", "TRANSFORMERS_")
_SSH = Path(__file__).with_name("openmpi_ssh.sh")


class OpenMpi(MpiLauncher):
    """Open MPI, whose jobs only its own MPI library can join."""

    name = "open-mpi"
    # OMPI_COMM_WORLD_NODE_RANK is not the number of a node: it numbers the processes of all jobs on this node.
    placement_variables = tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
    rank_variable = "OMPI_COMM_WORLD_RANK"
    option = "openmpi"
    programs = ("mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.openmpi", "orterun", "prterun")
    hostfile_option = "--hostfile"
    daemons = ("orted", "prted")
    killed: ClassVar = re.compile(
        r"noticed that process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on\s+signal (?P<signal>\d+)"
    )

    def rendezvous(self) -> OverMpi:
        # By default mpi4py loads the environment's libmpi.so. With Intel MPI's, each rank would be a job of one rank.
        return OverMpi(self._library(), mpich_abi=False)

    @property
    def not_passed_on(self) -> frozenset[str]:
        return frozenset(
            name for name in self._variables if _is_users(name) and not name.startswith(_OF_A_LOGIN + _OF_A_TERMINAL)
        )

    def lacking(self, host: str, names: frozenset[str]) -> str:
        missing = sorted(self.not_passed_on - names, key=lambda name: (not name.startswith(_OF_LIBRARIES), name))
        if not missing:
            return ""
        words = names_of(missing, "variable")
        return f"Open MPI does not give {host} the shell's {words}; add -x {missing[0]} and so on to mpirun"

    @classmethod
    def recognises(cls, version: str) -> bool:
        return any(name in version for name in ("OpenRTE", "Open MPI", "PRRTE"))

    @classmethod
    def command(cls, program: Path, version: str, options: MpirunOptions) -> list[str]:
        release = re.search(r"(\d+)\.\d+\.\d+", version)
        is_prrte = release is not None and int(release[1]) >= 5
        words = [str(program), "--bind-to", "none"]
        if os.geteuid() == 0:
            words += ["--allow-run-as-root"]
        # Without a hostfile, Open MPI refuses more ranks than this host has cores.
        local = ["--host", f"localhost:{options.count}"]
        words += [cls.hostfile_option, options.hostfile] if options.hostfile else local
        if options.hostfile and not is_prrte:
            words += _ssh_arguments(options)
        if options.interface:
            words += ["--prtemca", "prte_if_include"] if is_prrte else ["--mca", "oob_tcp_if_include"]
            words += [options.interface, "--mca", "btl_tcp_if_include", options.interface]
        if options.all_output:
            words += ["--output", "tag"] if is_prrte else ["--tag-output"]
        for name in sorted(filter(_is_users, options.variables)):
            words += ["-x", name]
        return [*words, "-n", str(options.count), *options.program]

    @classmethod
    def hostfile_lines(cls, host: Host) -> list[str]:
        return [f"{host.name} slots={host.slots}"]

    def _library(self) -> str:
        """Return the library of the Open MPI that runs this rank; if it is not found, the bare name for the loader."""
        beside = (folder / _LIBRARY for folder in self._library_folders())
        return next((str(path) for path in beside if path.exists()), _LIBRARY)

    def _library_folders(self) -> Iterator[Path]:
        if folder := self._variables.get("OMPI_LIBDIR_LOC"):  # set by Open MPI 5
            yield Path(folder)
        for process in procfs.ancestors():
            program = procfs.executable(process.pid)
            if program is not None and program.name in (*self.programs, *self.daemons, "prte"):
                yield program.parent.parent / "lib"
                yield program.parent.parent / "lib64"


def _is_users(name: str) -> bool:
    return name not in _NOT_PASSED_ON and not name.startswith(_NOT_PASSED_ON_PREFIXES)


def _ssh_arguments(options: MpirunOptions) -> list[str]:
    """Return options that start the daemons through any login shell; none if the user has set an ssh command."""
    # mpi-operator sets ssh options in plm_rsh_args, which the script does not take. Open MPI splits the ssh command
    # at spaces, so the script's path must have none.
    own = any(name in options.variables for name in ("OMPI_MCA_plm_rsh_agent", "OMPI_MCA_plm_rsh_args"))
    if own or " " in str(_SSH):
        return []
    return ["--mca", "plm_rsh_agent", f"sh {_SSH}", "--mca", "plm_rsh_assume_same_shell", "0"]
