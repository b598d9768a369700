"""The registry of backends, what follows from the answers of a backend and its devices, and backends in jobs."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from jobs import completed, mpirun, run, train
from torch.nn.parallel import DistributedDataParallel

import cpudist
from cpudist import backends, job
from cpudist.backends import Backend, Devices, gloo
from cpudist.backends.auto_compression import choose_later
from cpudist.backends.compression import check_scheme
from cpudist.backends.process_group import GroupRanks
from cpudist.errors import UserError
from cpudist.huggingface.callbacks import EndStep
from cpudist.patching.undo import Changes

CHECKS = Path(__file__).parent / "checks"
_GLOO_RECORDS = (2, 9)  # torch from this version on


_GUEST = """
from cpudist.backends import Devices, Option
from cpudist.backends.compression import check_supported, check_scheme
from cpudist.backends.gloo import GlooBackend

class Chips(Devices):
    companions = ("guest-runtime",)

    def findings(self, environment):
        yield "warning", "the guest is hungry", "feed it"

    def found(self):
        return "3 chips"

class Guest(GlooBackend):
    name = "guest"
    options = (
        Option("depth", "how deep to go", type=int, default=2, metavar="N"),
        Option("mode", "how to go", choices=("fast", "safe")),
        Option("dry_run", "do not go", type=bool, default=False),
    )
    devices = Chips()

    def start(self, world, store, timeout):
        import torch.distributed as dist

        dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)
        print("guest:", sorted(self.configured.items()))
"""


@pytest.mark.job
def test_a_foreign_backend_brings_its_options_and_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its entry point, beside one that is broken."""
    (tmp_path / "guest.py").write_text(_GUEST)
    (tmp_path / "script.py").write_text("import torch.distributed as dist; print('ran on', dist.get_backend())")
    info = tmp_path / "guest-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guest\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[cpudist.backends]\nguest = guest:Guest\nbroken = no_such_module:Broken\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    shown = completed(train("--help"), 60)
    words = ["with --backend guest", "--depth N", "--mode {fast,safe}", "--dry-run", "--mesh AXES", "gloo, guest, xla"]
    assert all(word in shown.stdout for word in words), shown.output
    script = str(tmp_path / "script.py")
    ran = completed(train("--backend", "guest", "--depth", "3", "--dry-run", script), 60)
    assert "guest: [('depth', 3), ('dry_run', True), ('mode', None)]\n" in ran.stdout, ran.output
    assert "ran on gloo\n" in ran.stdout, ran.output
    assert "idle" not in ran.stderr, ran.output
    auto = run(train("--backend", "auto", script), 60)
    assert "takes ccl, on the CPU; 3 chips of this machine idle (--backend guest)" in auto.stderr, auto.output
    for words, says in (
        (["--backend", "guest", "--mode", "slow", script], "invalid choice: 'slow'"),
        (["--backend", "broken", script], "backend broken cannot be imported: No module named 'no_such_module'"),
    ):
        refused = run(train(*words), 60)
        assert refused.returncode == 2, refused.output
        assert refused.stderr.count("\n") == 1, refused.output
        assert says in refused.stderr, refused.output
    told = run([sys.executable, "-m", "cpudist", "doctor", "--json"], 60).stdout
    assert "the guest is hungry" in told


class LazyDevices(Devices):
    """Compute when they are told to, and note what they are told."""

    type = "xla"

    def __init__(self) -> None:
        self.told: list[str] = []

    def end_step(self) -> None:
        self.told.append("end step")

    def synchronize(self) -> None:
        self.told.append("synchronize")


class Lazy(Backend):
    """Has devices of its own, beside gloo's process group for the CPU."""

    name = "lazy"
    devices = LazyDevices()

    def start(self, world: Any, store: Any, timeout: float) -> None:
        self.told = [f"start {world.rank}({world.size}) within {timeout:g} s"]
        dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)

    def change_libraries(self, changes: Changes) -> None:
        changes.variable("LAZY_DEVICE", "0")

    def wrap(self, model: torch.nn.Module, **options: Any) -> torch.nn.Module:
        return model

    def stop(self) -> None:
        dist.destroy_process_group()
        self.told.append("stop")


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lazy]:
    monkeypatch.setattr(backends, "_registered", {**backends._registered, "lazy": Lazy})
    world = cpudist.init("lazy", timeout=9)
    backend = job.require().backend
    assert isinstance(backend, Lazy)
    assert (world.backend, world.device.type) == ("lazy", "xla")
    yield backend
    cpudist.shutdown()
    assert backend.told[-1] == "stop"
    assert "LAZY_DEVICE" not in os.environ


def test_it_starts_in_the_jobs_world_and_sets_its_variables(lazy: Lazy) -> None:
    assert lazy.told == ["start 0(1) within 9 s"]
    assert os.environ["LAZY_DEVICE"] == "0"
    assert os.environ.get("ACCELERATE_TORCH_DEVICE") is None, "that is for backends on the CPU's process groups"
    with pytest.raises(UserError, match="timeout of the backend lazy cannot be changed"):
        job.require().set_timeout(3)


def test_only_what_fits_is_done_to_a_model(lazy: Lazy, capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Conv2d(1, 1, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    cpudist.optimize(model, optimizer, dtype=torch.bfloat16)
    assert job.require().record.optimizations == ["native", "bfloat16 autocast"]
    assert not optimizer.param_groups[0].get("fused")
    capsys.readouterr()
    assert cpudist.optimize(model, ipex=True)[0] is model
    says = "native (Intel's extension is not for the backend lazy)"
    assert says in capsys.readouterr().err
    with pytest.raises(UserError, match="float16 is not for the backend lazy; use bfloat16"):
        cpudist.optimize(torch.nn.Linear(1, 1), dtype=torch.float16)
    assert cpudist.batches(batches := [torch.ones(2)]) is batches


def test_the_device_is_waited_for_after_the_first_and_the_last_step_alone(lazy: Lazy) -> None:
    ends = EndStep(lazy)
    state, control = SimpleNamespace(global_step=0, max_steps=4), SimpleNamespace(should_log=False)
    ends.on_train_begin(None, state, control)
    lazy.devices.told.clear()
    for state.global_step in range(1, 5):
        ends.on_step_end(None, state, control)
    assert lazy.devices.told == ["synchronize", "end step", "end step", "synchronize"]


def test_a_mean_is_over_all_ranks_and_leaves_its_tensor_alone() -> None:
    cpudist.init("gloo")
    count = torch.tensor([3, 2**40 + 1])
    assert cpudist.mean(count).tolist() == [3.0, 2.0**40 + 1]
    loss = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    assert cpudist.mean(loss).data_ptr() != loss.data_ptr()
    cpudist.shutdown()
    with pytest.raises(UserError, match="no running job"):
        cpudist.mean(count)


def test_a_grad_scaler_takes_part_in_the_step(lazy: Lazy) -> None:
    """Gradients are unscaled; a step of gradients that are not finite is left out, and the scale becomes smaller."""
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler, without_effect = torch.amp.GradScaler("cpu", init_scale=1024.0), cpudist.scaler()
    for used, value in ((without_effect, 1.0), (scaler, 1.0), (scaler, float("inf"))):
        optimizer.zero_grad()
        used.scale(weight * value).backward()
        cpudist.step(optimizer, used)
    assert (weight.item(), scaler.get_scale(), without_effect.is_enabled()) == (0.0, 512.0, False)
    assert lazy.devices.told[-3:] == ["end step"] * 3


def test_schemes() -> None:
    for text in ("auto", "none", "bf16", "int8", "powersgd", "powersgd:1", "powersgd:16"):
        assert check_scheme(text, "") == text
    for text in ("", "fp16", "bf16:2", "powersgd:", "powersgd:0", "powersgd:x"):
        with pytest.raises(UserError, match=r"^--compress zip is not known; give auto"):
            check_scheme(text, "--compress zip")
    with pytest.raises(UserError, match=r"^the compression must be of type str, not int$"):
        check_scheme(3, "compress=3")  # type: ignore[arg-type]


def test_auto_chooses_none_at_once_where_no_gradient_is_float32() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    plain, chosen = torch.nn.Linear(2, 2), list[tuple[str, str]]()
    for model in (plain, DistributedDataParallel(plain.double())):
        choose_later(model, lambda *found: chosen.append(found))
    dist.destroy_process_group()
    assert chosen == [("none", "")] * 2


@pytest.mark.versions
@pytest.mark.job
@pytest.mark.parametrize("backend", ["ccl", "gloo"])
def test_another_thread_sees_what_a_rank_waits_in(backend: str) -> None:
    if backend == "gloo" and tuple(map(int, torch.__version__.split(".")[:2])) < _GLOO_RECORDS:
        pytest.skip("gloo of this torch records nothing")
    completed(mpirun(3, sys.executable, str(CHECKS / "calls.py"), backend), timeout=90)


@pytest.mark.parametrize("step", [3600.0, -3600.0])
@pytest.mark.parametrize("look", [0, 1])
def test_a_clock_that_is_set_makes_no_call_last_long(step: float, look: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo's flight recorder uses the wall clock, which may be set before the first look or before the second."""
    entry = {"process_group": ["0", "default"], "is_p2p": False, "retired": False, "output_dtypes": []}
    entry |= {"output_sizes": [], "profiling_name": "gloo:all_reduce", "collective_seq_id": 1}
    entry["time_created_ns"] = time.time_ns()
    dump = {"pg_status": {"0": 1}, "entries": [entry]}
    monkeypatch.setattr(gloo, "_recorded", lambda calls: dump)
    monkeypatch.setattr(gloo, "groups", lambda: {"0": GroupRanks("", None)})
    backend, real = gloo.GlooBackend(), time.time
    for number in range(2):
        if number == look:
            monkeypatch.setattr(time, "time", lambda: real() + step)
        found = backend.calls()
    assert found.under_way[0].seconds < 60


@pytest.mark.job
@pytest.mark.parametrize("backend", ["ccl", "gloo"])
def test_powersgd_with_several_buckets_leaves_ranks_equal(backend: str) -> None:
    completed(mpirun(2, *train("--backend", backend, str(CHECKS / "powersgd.py"), backend)), timeout=120)
