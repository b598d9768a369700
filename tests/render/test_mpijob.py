"""The MPIJob: its CRD's schema, and its content."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from render import schemas
from render.example import ALL, env

Documents = Callable[..., list[dict[str, Any]]]


@pytest.mark.parametrize("words", [[], [*ALL, "--mpi", "openmpi"], ["--mpi", "mpich"]])
def test_it_is_what_the_schema_wants(documents: Documents, words: list[str]) -> None:
    (job,) = documents("mpijob", *words)
    schemas.check(job)


def test_ranks_run_in_the_workers_and_get_the_launchers_variables(documents: Documents) -> None:
    (job,) = documents("mpijob", *ALL, "--mpi", "mpich", "--wait", "60")
    assert (job["spec"]["mpiImplementation"], job["spec"]["slotsPerWorker"]) == ("MPICH", 2)
    replicas = job["spec"]["mpiReplicaSpecs"]
    assert {name: replica["replicas"] for name, replica in replicas.items()} == {"Launcher": 1, "Worker": 3}
    launcher, worker = (replicas[name]["template"]["spec"] for name in ("Launcher", "Worker"))
    (starts,), (trains,) = launcher["containers"], worker["containers"]
    waits = ["cpudist", "launch", "--hostfile", "/etc/mpi/hostfile", "--mpi", "mpich", "--wait", "60", "--grace", "290"]
    assert starts["command"] == waits
    assert starts["args"][:3] == ["--", "--checkpoint-on-signal", "images"]
    assert env(starts).items() >= {"HF_TOKEN": "token of hugging-face", "HF_HOME": "/work/hf"}.items()
    assert env(starts)["CPUDIST_RUN_ID"] == "pod's metadata.labels['batch.kubernetes.io/controller-uid']"
    assert set(env(trains)) == {"HF_TOKEN", "CPUDIST_TOKEN"}  # of the patch
    assert trains["resources"]["limits"] == {"cpu": "16", "memory": "32Gi"}
    assert starts["resources"]["limits"] == {"cpu": "1", "memory": "1Gi"}
    for container in (starts, trains):
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert container["workingDir"] == "/work"
    for pod in (launcher, worker):
        assert pod["terminationGracePeriodSeconds"] == 300
        assert pod["tolerations"][1] == {"key": "spot", "operator": "Exists"}


def test_an_unknown_mpi(refused: Callable[..., list[str]]) -> None:
    lines = refused("mpijob", "--mpi", "hpmpi", "--wait", "0")
    assert lines == [
        "cpudist: --mpi 'hpmpi': not one of intel, mpich, openmpi",
        "cpudist: --wait '0': not a whole number of at least 1",
    ]
