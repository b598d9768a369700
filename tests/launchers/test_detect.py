"""Launchers are recognised by the variables that they set, and tell where a rank is and how ranks meet."""

import os
from dataclasses import asdict
from pathlib import Path

import pytest
from launcher_variables import (
    BATCH_SCRIPT,
    BY_HAND,
    FLUX,
    HYDRA,
    INTEL,
    INTEL_SCRIPT_MPICH_HYDRA,
    ONE_IN_A_POD,
    OPEN_MPI,
    PALS,
    POD,
    STEP,
    TORCHRUN,
)

from cpudist.errors import UserError
from cpudist.launchers import Alone, AtAddress, InStore, OverMpi, Placement, RendezvousMethod, detect
from cpudist.launchers.mpich import requested_nodes
from cpudist.launchers.notebook import rank_variables, without_launcher
from cpudist.launchers.one_world import corrected, describing

NAMED_STEP = STEP | {"CPUDIST_TOKEN": "known"}
ON_NODES = NAMED_STEP | {"SLURM_STEP_NODELIST": "n[1-2]"}
ARBITRARY = ON_NODES | {"SLURM_DISTRIBUTION": "arbitrary"}


@pytest.mark.parametrize(
    ("env", "name", "rendezvous", "rank"),
    [
        ({}, "single", Alone(), 0),
        (INTEL, "intel-mpi", OverMpi(), 1),
        (HYDRA, "mpich", OverMpi(), 1),
        (HYDRA | {"MPI_LOCALNRANKS": "4"}, "mpich", OverMpi(), 1),
        (OPEN_MPI | {"OMPI_LIBDIR_LOC": "/nowhere"}, "open-mpi", OverMpi("libmpi.so.40", mpich_abi=False), 1),
        (ON_NODES, "slurm", AtAddress("n1", 15217, token="known", name_known=True), 1),
        (STEP | {"PMI_RANK": "1", "PMI_SIZE": "4"}, "slurm", OverMpi(), 1),
        (PALS | {"PMI_SIZE": "4"}, "pals", OverMpi(), 1),
        (PALS | {"PMI_SIZE": "4", "PMI_RANK": "1"}, "pals", OverMpi(), 1),
        (PALS | HYDRA, "mpich", OverMpi(), 1),
        (FLUX, "flux", OverMpi(), 1),
        ({k: v for k, v in FLUX.items() if "PALS" not in k}, "flux", OverMpi(), 1),  # not for Cray's MPI
        (STEP | INTEL, "intel-mpi", OverMpi(), 1),  # srun starts the helpers of mpirun in an allocation
        (STEP | OPEN_MPI, "open-mpi", OverMpi("libmpi.so.40", mpich_abi=False), 1),
        (STEP | FLUX, "flux", OverMpi(), 1),  # an instance of Flux that srun has started
        (FLUX | HYDRA, "mpich", OverMpi(), 1),
        (STEP | {"SLURM_STEP_NODELIST": "n1", "PMI_RANK": "1", "PALS_RANKID": "1"}, "slurm", OverMpi(), 1),
        (ARBITRARY | {"MASTER_ADDR": "n2"}, "slurm", AtAddress("n2", 15217, token="known", name_known=True), 1),
        (BATCH_SCRIPT, "single", Alone(), 0),
        (TORCHRUN | {"CPUDIST_TOKEN": "known"}, "torchrun", AtAddress("localhost", 42805, token="known"), 1),
        (TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"}, "torchrun", AtAddress("localhost", 42805, True), 1),
        (ONE_IN_A_POD, "pytorchjob", AtAddress("job-master-0", 23456), 1),
        (BY_HAND, "env", AtAddress("h0", 29500), 1),
        (BY_HAND | INTEL, "intel-mpi", OverMpi(), 1),
        (STEP | POD | TORCHRUN, "torchrun", AtAddress("localhost", 42805), 1),
    ],
)
def test_recognises_the_launcher(env: dict[str, str], name: str, rendezvous: RendezvousMethod, rank: int) -> None:
    variables = dict(env)
    launcher = detect(variables)
    variables.clear()  # as the script may change them
    assert (launcher.name, launcher.placement().rank) == (name, rank)
    assert launcher.rendezvous() == rendezvous
    assert (launcher.rank, launcher.is_main_process) == (rank, rank == 0)


def test_the_token_of_a_step_is_known_to_the_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def token(home: str, step: str) -> str:
        monkeypatch.setenv("HOME", str(tmp_path / home))
        found = detect(STEP | {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_ID": step}).rendezvous()
        return found.token

    tokens = [token("mine", "0"), token("mine", "0"), token("mine", "1"), token("theirs", "0")]
    assert tokens[0] == tokens[1]
    assert len(set(tokens)) == 3


AGENT = {"TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_xy/none_uw/attempt_1/0/error.json"}
NESTED = {"TORCHELASTIC_ERROR_FILE": "/attempt_2/run_ab/attempt_1/0/error.json"}


@pytest.mark.parametrize(
    ("env", "restarts", "run_ids"),
    [
        ({"CPUDIST_RESTART_COUNT": "3"}, 3, {}),
        (BY_HAND, 0, {}),
        ({"CPUDIST_RUN_ID": ""}, 0, {}),  # a pod without the label that it is taken from
        (INTEL | {"CPUDIST_RUN_ID": "mine"}, 0, {"mine": True}),
        (STEP, 0, {"slurm-7.0": False}),
        (STEP | {"SLURM_RESTART_COUNT": "1"}, 1, {"slurm-7.0": True}),
        (STEP | {"SLURM_STEP_ID": "4294967280"}, 0, {}),  # the lowest of the special steps
        (BATCH_SCRIPT | INTEL, 0, {}),
        (STEP | INTEL | {"SLURM_RESTART_COUNT": "1"}, 0, {"slurm-7.0": True}),  # `cpudist launch` counts
        (TORCHRUN | AGENT, 0, {"torchrun-none_uw": True}),
        (TORCHRUN | NESTED, 0, {"torchrun-run_ab": True}),
        (STEP | TORCHRUN | AGENT, 0, {"slurm-7.0": False, "torchrun-none_uw": True}),
        (TORCHRUN, 0, {"torchrun-2eb830bd": False}),
        (TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "2"}, 2, {"torchrun-2eb830bd": True}),
        (TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"}, 0, {}),
        (POD | {"CPUDIST_RUN_ID": "uid"}, 0, {"uid": True}),
    ],
)
def test_knows_the_runs_restarts_and_its_names(env: dict[str, str], restarts: int, run_ids: dict[str, bool]) -> None:
    assert (detect(env).restarts, detect(env).run_ids) == (restarts, run_ids)


@pytest.mark.parametrize(
    ("pod", "waits"),
    [
        ({"PET_RDZV_ENDPOINT": "localhost:23456"}, True),
        ({"PET_MASTER_ADDR": "127.0.0.1"}, True),
        ({"PET_RDZV_ENDPOINT": "127.0.0.9:23456"}, False),
        ({}, False),
    ],
)
def test_torchruns_agent_waits_for_the_host_where_agents_meet(pod: dict[str, str], waits: bool) -> None:
    assert detect(TORCHRUN | {"MASTER_ADDR": "localhost"} | pod).waiting_agent == (os.getppid() if waits else None)


def test_ranks_of_flux_and_pals_know_their_place(tmp_path: Path) -> None:
    """PALS does not give the number of ranks, and PBS repeats a host for each of its mpiprocs."""
    one_node = FLUX | {"FLUX_JOB_NNODES": "1"}
    assert [detect(env).placement() for env in (FLUX, one_node)] == [Placement(1, 4), Placement(1, 4, 1, 4, 0, 1)]
    nodes = tmp_path / "nodes"
    nodes.write_text("x1\nx1\nx2\nx2\nx3\nx3\n")
    assert detect(PALS | {"PBS_NODEFILE": str(nodes)}).placement() == Placement(1, 6, 1, 2)
    assert detect(PALS | {"PBS_NODEFILE": str(nodes), "PMI_SIZE": "4"}).placement() == Placement(1, 4, 1, 2)


@pytest.mark.parametrize("around", [INTEL, OPEN_MPI, STEP, TORCHRUN, POD, PALS, FLUX])
def test_a_notebook_that_a_launcher_has_started_starts_its_own_job(around: dict[str, str]) -> None:
    """Its ranks do not get the variables by which the launcher numbers its own ranks."""
    store, place = InStore("h0", 29500, "job", "secret"), Placement(3, 4, 1, 2, 1, 2)
    found = detect({**without_launcher(around), **rank_variables(place, store)})
    assert (found.name, found.placement(), found.rendezvous()) == ("notebook", place, store)


@pytest.mark.parametrize("around", [INTEL, OPEN_MPI, STEP, TORCHRUN, PALS | {"PMI_SIZE": "1"}, FLUX, BY_HAND])
def test_a_library_that_knows_another_launcher_finds_the_same_rank(around: dict[str, str]) -> None:
    """Each row of variables is read back as its launcher's own."""
    place = Placement(2, 6, 0, 2, 1, 3)
    around = around | {"SLURM_STEP_TASKS_PER_NODE": "2(x3)"}
    variables = {**around, **describing(place, around)}
    found = detect({name: value for name, value in variables.items() if value is not None}).placement()
    assert all(value in (None, getattr(place, field)) for field, value in asdict(found).items()), found
    assert set(corrected(place, around)) == {name for name in around if around[name] != variables[name]}


def test_in_a_batch_script_ranks_are_the_tasks_of_slurm() -> None:
    """Lightning reads five variables of Slurm together; sbatch does not set all of them."""
    names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", "SLURM_NODEID")
    even, uneven = Placement(2, 4, 0, 2, 1, 2), Placement(2, 3, 0, 1, 1, 2)
    assert [describing(even, BATCH_SCRIPT)[name] for name in names] == ["2", "4", "0", "2", "1"]
    assert [describing(uneven, BATCH_SCRIPT)[name] for name in names] == ["2", "3", "0", None, "1"]
    assert not corrected(Placement(0, 1, 0, 1, 0, 1), BATCH_SCRIPT)  # its srun starts four tasks
    assert corrected(uneven, BATCH_SCRIPT) == ["SLURM_PROCID", "SLURM_NTASKS"]


@pytest.mark.parametrize("variable", ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"])
@pytest.mark.parametrize(
    ("hosts", "first"), [("n[01-03,7],gpu-a", "n01"), ("a-b.c,n[1-2]", "a-b.c"), ("r[2]n[5-6]-x", "r2n5-x")]
)
def test_slurms_first_host_is_rank_0s(variable: str, hosts: str, first: str) -> None:
    assert detect(NAMED_STEP | {variable: hosts}).rendezvous().host == first


@pytest.mark.parametrize(("text", "sizes"), [("2", [2]), ("2(x3)", [2, 2, 2]), ("2,1", [2, 1]), ("3(x2),1", [3, 3, 1])])
def test_slurm_local_size_is_that_of_the_own_node(text: str, sizes: list[int]) -> None:
    """Without a number of tasks of the step, the job's counts."""
    for node, local_size in enumerate(sizes):
        env = STEP | {"SLURM_NODEID": str(node), "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": text}
        env |= {"SLURM_PROCID": "0", "SLURM_NTASKS": str(sum(sizes))}
        del env["SLURM_STEP_NUM_TASKS"]
        assert detect(env).placement() == Placement(0, sum(sizes), 0, local_size, node, len(sizes))


@pytest.mark.parametrize(
    ("env", "variable"),
    [
        ({k: v for k, v in HYDRA.items() if k != "PMI_SIZE"}, "PMI_SIZE"),
        (HYDRA | {"PMI_SIZE": "four"}, "PMI_SIZE='four'"),
        ({"RANK": "0"}, "RANK is set but WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set but RANK"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "MASTER_ADDR"),
        (HYDRA | {"PMI_RANK": "4"}, "contradict"),
        (HYDRA | {"MPI_LOCALRANKID": "2"}, "contradict"),
        (PALS, "PMI_SIZE"),
        (TORCHRUN | {"RANK": "4"}, "contradict"),
        (TORCHRUN | {"LOCAL_RANK": "2"}, "contradict"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "5"}, "contradict"),
        (TORCHRUN | {"GROUP_RANK": "2"}, "contradict"),
        (STEP | {"SLURM_NODEID": "2"}, "SLURM_NODEID"),
        (STEP | {"SLURM_STEP_TASKS_PER_NODE": "two"}, "two"),
        *((NAMED_STEP | {"SLURM_STEP_NODELIST": hosts}, "not understood") for hosts in ("", "n[1-2")),
        (ARBITRARY, "MASTER_ADDR"),
        (ON_NODES | {"SLURM_HOSTFILE": "hosts"}, "MASTER_ADDR"),
        *((BY_HAND | {name: ""}, name) for name in ("MASTER_ADDR", "MASTER_PORT", "CPUDIST_TOKEN")),
        *((BY_HAND | {"MASTER_PORT": port}, "MASTER_PORT") for port in ("0", "65536", "²")),
        ({name: value for name, value in BY_HAND.items() if name != "MASTER_PORT"}, "MASTER_PORT"),
        *((STEP | {"MASTER_ADDR": "n1", "CPUDIST_TOKEN": token}, "CPUDIST_TOKEN") for token in ("", " ")),
        (NAMED_STEP | {"MASTER_ADDR": "n1", "MASTER_PORT": "0"}, "MASTER_PORT"),
        (INTEL_SCRIPT_MPICH_HYDRA, "comes first on PATH"),  # before it aborts
        (POD, "with torchrun, or"),  # several processes
        (POD | HYDRA, "with torchrun, or"),
    ],
)
def test_half_set_and_contradicting_variables_are_one_clear_line(env: dict[str, str], variable: str) -> None:
    with pytest.raises(UserError) as error:
        _ = detect(env).placement(), detect(env).rendezvous()
    assert variable in str(error.value)
    assert "\n" not in str(error.value)


def test_where_variables_make_no_sense_every_rank_speaks() -> None:
    assert detect(BY_HAND | {"RANK": "one"}).is_main_process


@pytest.mark.parametrize(
    ("line", "nodes"),
    [
        ("mpiexec.hydra -f hosts -n 4 -ppn 2 cpudist-train train.py", 2),
        ("mpirun -np 5 -perhost 2 train", 3),
        ("mpirun -ppn 2 -n 2 train -n 8", 1),
        ("mpirun -n 4 train", None),
        ("mpirun -ppn 2 train", None),
        ("mpirun -n 4 -ppn 0 train", None),
    ],
)
def test_on_how_many_nodes_hydra_was_asked_to_start_ranks(line: str, nodes: int | None) -> None:
    assert requested_nodes(line.split()) == nodes


@pytest.mark.parametrize(
    ("env", "tasks"),
    [
        ({}, None),
        (BATCH_SCRIPT, 4),
        (BATCH_SCRIPT | {"SLURM_STEP_ID": "4294967290"}, 4),  # a shell that salloc starts on a node
        (BATCH_SCRIPT | {"SLURM_NTASKS": "1"}, None),
        ({"SLURM_JOB_ID": "7"}, None),  # only a number of nodes was asked for
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8"}, 8),  # a shell of salloc on the login node
        (STEP, None),
        (BATCH_SCRIPT | INTEL, None),
        (BATCH_SCRIPT | TORCHRUN, None),
    ],
)
def test_one_process_in_an_allocation_of_several_tasks_is_told(env: dict[str, str], tasks: int | None) -> None:
    said = detect(env).warning
    assert f"asked for {tasks} tasks" in said and "srun" in said if tasks else not said
