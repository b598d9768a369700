"""Open MPI's mpirun."""

from __future__ import annotations

import os
import re

from cpudist.launch.hostfile import OPTION
from cpudist.launch.launchers.base import Death, Launcher, Start

# What ranks on other hosts need and Open MPI does not hand over by itself. Hydra hands over everything.
_NEEDED = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "GLIBC_TUNABLES", "TMPDIR", "LANG", "LC_ALL")
_NEEDED_PREFIXES = (
    *("CPUDIST_", "PYTHON", "CCL_", "FI_", "I_MPI_", "MPI4PY_", "OMP_", "KMP_", "GOMP_", "MKL_", "ONEDNN_", "DNNL_"),
    *("TORCH", "PYTORCH_", "GLOO_", "TP_", "IPEX_", "MALLOC_", "TCMALLOC_"),
    *("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TOKENIZERS_", "ACCELERATE_", "WANDB_", "MLFLOW_", "USE_TORCH_XLA"),
    *("XLA_", "PJRT_", "CPU_NUM_DEVICES", "http_", "https_", "no_", "HTTP_", "HTTPS_", "NO_", "SSL_", "REQUESTS_"),
)
_DEATH = re.compile(
    r"noticed that process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on\s+signal (?P<signal>\d+)"
)


class OpenMpi(Launcher):
    """Open MPI 4 (ORTE) and 5 (PRRTE)."""

    mpi = "open-mpi"
    rank_variable = "OMPI_COMM_WORLD_RANK"

    @classmethod
    def answers(cls, version: str) -> bool:
        return any(name in version for name in ("OpenRTE", "Open MPI", "PRRTE"))

    def command(self, start: Start) -> list[str]:
        words = [str(self.program), "--bind-to", "none"]
        if os.geteuid() == 0:
            words += ["--allow-run-as-root"]
        # Without a file it counts this host's cores, and refuses more ranks than those.
        words += [OPTION[self.mpi], start.hostfile] if start.hostfile else ["--host", f"localhost:{start.ranks}"]
        if start.interface:
            words += self._interface(start.interface)
        if start.all_output:
            words += ["--output", "tag"] if self._major >= 5 else ["--tag-output"]
        for name in sorted(start.variables):
            if name in _NEEDED or name.startswith(_NEEDED_PREFIXES):
                words += ["-x", name]
        return [*words, "-n", str(start.ranks), *start.program]

    def deaths(self, said: str) -> list[Death]:
        return [Death(int(found["signal"]), int(found["rank"]), found["host"]) for found in _DEATH.finditer(said)]

    def _interface(self, name: str) -> list[str]:
        # Open MPI 5 has left starting ranks to PRRTE, whose parameters have another prefix.
        own = ["--prtemca", "prte_if_include"] if self._major >= 5 else ["--mca", "oob_tcp_if_include"]
        return [*own, name, "--mca", "btl_tcp_if_include", name]

    @property
    def _major(self) -> int:
        found = re.search(r"(\d+)\.\d+\.\d+", self.version)
        return int(found[1]) if found else 0
