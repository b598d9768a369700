"""Real jobs on torch_xla's PJRT runtime with CPU devices: one process, several, and one program over a mesh."""

import ast
import importlib.util
import itertools
import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from jobs import Result, completed, mpirun, run, torchrun, train
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from trainer_examples import trained

pytestmark = [pytest.mark.job, pytest.mark.versions]

if importlib.util.find_spec("torch_xla") is None:
    pytest.skip("torch_xla is not installed", allow_module_level=True)

CHECKS = Path(__file__).parent / "checks"
IN_TURN = str(CHECKS / "in_turn.py")
MADE_UP = [sys.executable, str(CHECKS / "made_up.py")]
ROOT = Path(__file__).parents[3]
LOOP = str(ROOT / "examples" / "one_program.py")
RUNTIMES = str(CHECKS / "written_for_the_runtime.py")
SCRIPTS = ROOT / "tests" / "huggingface" / "checks"
BOUND = 600.0
# Most of the time of these jobs is compiling, which takes a fifth of the time without LLVM's expensive passes.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")


def _start(ranks: int, *command: str) -> Result:
    return completed(mpirun(ranks, *command) if ranks > 1 else list(command), timeout=BOUND)


def _loop(ranks: int, folder: Path, *jobs: str | dict[str, str]) -> list[tuple[list[float], dict[str, torch.Tensor]]]:
    """The losses of the README's loop and what it has saved, for each of `jobs`, in turn in the same processes."""
    texts = [job if job == "made up" else json.dumps(job) for job in jobs]
    result = _start(ranks, sys.executable, IN_TURN, LOOP, str(folder), *texts)
    losses = [float(text) for text in re.findall(r"step \d+ loss (\S+)", result.stdout)]
    assert len(losses) == 20 * len(jobs), result.output
    files = [sorted(path.name for path in (folder / str(number)).iterdir()) for number in range(len(jobs))]
    assert files == files[:1] * len(jobs)
    return [(losses[20 * n : 20 * n + 20], _saved(folder / str(n))) for n in range(len(jobs))]


def _saved(folder: Path) -> dict[str, torch.Tensor]:
    parts = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata.items()
    tensors = {name: torch.empty(part.size) for name, part in parts if isinstance(part, TensorStorageMetadata)}
    dcp.load(tensors, checkpoint_id=folder, no_dist=True)
    return tensors


def test_the_loop_of_the_readme_is_the_same_on_every_backend(tmp_path: Path) -> None:
    """Also on ranks that the runtime connects, whose group of devices refuses CPU tensors; only they are made up."""
    gloo, ccl, xla = ({"backend": name} for name in ("gloo", "ccl", "xla"))
    meshes = [{**xla, "mesh": mesh} for mesh in ("data=4", "fsdp=4", "model=4", "data=2,model=2")]
    # xla first: torch's first backward pass makes a queue for each device that it finds.
    (wanted, expected), *others = _loop(1, tmp_path / "1", xla, gloo, ccl)
    others += _loop(2, tmp_path / "2", xla, ccl, gloo, "made up") + _loop(1, tmp_path / "4", *meshes)
    assert len(expected) == 4 * 4, "parameters, and three numbers of AdamW for each"
    for number, (losses, saved) in enumerate(others):
        assert losses == pytest.approx(wanted, abs=1e-4), number
        torch.testing.assert_close(saved, expected, rtol=1e-3, atol=1e-4)


def test_a_plugin_for_gpus_trains_as_the_cpu_and_autocast_has_an_effect_there(tmp_path: Path) -> None:
    """The plugin calls itself cuda, which changes what torch_xla does, and computes on the CPU."""
    cuda = {"backend": "xla", "device": "cuda"}
    (wanted, _), (losses, _) = _loop(1, tmp_path, cuda, {"backend": "gloo"})
    assert losses == pytest.approx(wanted, abs=1e-4)
    result = _start(1, sys.executable, IN_TURN, str(CHECKS / "on_device.py"), str(tmp_path), json.dumps(cuda))
    assert "computed in torch.bfloat16\nxla xla:0 text torch.float32\n" in result.stdout, result.output
    assert "pjrt 1 of CUDA in each process by the runtime\n" in result.stdout, result.output


def test_every_collective_takes_tensors_of_the_device(tmp_path: Path) -> None:
    jobs = [json.dumps({"words": [host]}) for host in ("ccl", "gloo")]
    result = _start(2, sys.executable, IN_TURN, str(CHECKS / "collectives.py"), str(tmp_path), *jobs)
    for host, rank in itertools.product(("ccl", "gloo"), (0, 1)):
        assert f"rank {rank}: all collectives agree over xla_{host}" in result.stdout, result.output
    warning = "warning: not using ccl, rank 1 says: no compiler\n"
    assert result.stderr.count(warning) == 1, result.output
    assert result.stderr.count("xla does not have compress=bf16,") == 2, result.output


def test_a_program_for_the_runtime_trains_as_one_job() -> None:
    """Left alone, the runtime would train each rank by itself and end in success."""
    found = []
    for ranks, ways in ((1, ["own"]), (2, ["compiled", "ddp"])):
        result = _start(ranks, *train("--backend", "xla", RUNTIMES, *ways))
        found += re.findall(r"^(\d) ranks, weights (\S+)$", result.stdout, re.MULTILINE)
    assert [ranks for ranks, _ in found] == ["1", "2", "2"]
    assert [float(weights) for _, weights in found] == pytest.approx([float(found[0][1])] * 3, abs=1e-5)


def test_ddp_does_not_keep_a_bucket_for_each_gradient() -> None:
    """There would be 12 of the model's size."""
    result = _start(2, *train("--backend", "xla", RUNTIMES, "ddp_memory"))
    grown = [float(number) for number in re.findall(r"grew by (\S+) models", result.stdout)]
    assert len(grown) == 2, result.output
    assert max(grown) < 8, "gradients, their sum, and what compiling takes"


@pytest.mark.parametrize(
    ("ranks", "devices", "words", "says"),
    [
        (2, "1", [RUNTIMES, "spawn"], "asks torch_xla for nprocs=3 processes, and intel-mpi has started 2"),
        (1, "4", [RUNTIMES, "own"], "this process has 4 of them; start 4 ranks with one device each"),
        (1, "4", ["--mesh", "data=4", RUNTIMES, "own"], "for each device, and --mesh uses all in one process"),
        (2, "", ["--mesh", "data=2", LOOP, "out"], "over the devices of one process, and this job has 2"),
        (1, "", ["--mesh", "data=3", LOOP, "out"], "a batch (32 x 64) does not divide evenly by data"),
        (1, "", ["--device", "tpu", LOOP, "out"], "there is no libtpu"),
    ],
)
def test_user_errors_are_one_line(ranks: int, devices: str, words: list[str], says: str) -> None:
    """Among them what would train apart or leave devices idle."""
    command = train("--backend", "xla", *words)
    variables = {"CPU_NUM_DEVICES": devices} if devices else {}
    result = run(mpirun(ranks, *command) if ranks > 1 else command, BOUND, variables)
    assert result.returncode == 2, result.output
    assert says in result.stderr, result.output
    assert "Traceback" not in result.stderr, result.output
    if "spawn" in words:  # one program of all devices, which it asks for first
        assert "refused: use_spmd() makes one program over the devices of one runtime" in result.stdout, result.output


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("alone", r"xla_ccl ProcessGroupXla torch\.distributed\.distributed_c10d\n(.*\n)*moved: True pjrt"),
        ("marked", "refused: the script calls mark_sharding for weight, which --mesh has placed; leave one"),
    ],
)
def test_made_up_devices_in_one_process(name: str, says: str) -> None:
    """What is there for TPUs and GPUs, against the runtime's own interface: as its own group, and as a mesh."""
    result = _start(1, *MADE_UP, name)
    assert re.search(says, result.stdout), result.output


def test_ranks_that_the_runtime_does_not_connect_are_refused() -> None:
    """Left to itself, the runtime makes a world of each CPU process."""
    result = run(torchrun(2, MADE_UP[1], "ranks"), timeout=BOUND)
    apart = "refused: the runtime has connected 1 devices of 1 processes for 2 ranks (torchrun)"
    assert result.stdout.count(apart) == 2, result.output
    assert result.stdout.count("(torchrun) has the device that the runtime numbers") == 2, result.output


def test_the_sharding_is_shown(tmp_path: Path) -> None:
    words = ["--backend", "xla", "--mesh", "data=2,model=2", "--show-sharding", "--record", str(tmp_path / "r.json")]
    result = _start(1, *train(*words, LOOP, str(tmp_path / "out")))
    assert "mesh data=2,model=2 of 4 devices, in row-major order:\n" in result.stdout, result.output
    assert "0.bias  256  {replicated}\n" in result.stdout, result.output
    assert "0.weight  256 x 64  {devices=[2,1,2]0,2,1,3 last_tile_dim_replicate}\n" in result.stdout, result.output
    assert result.stdout.count("a batch  32 x 64  {devices=[2,1,2]0,1,2,3") == 1
    details = json.loads((tmp_path / "r.json").read_text())["details"]
    assert details["mesh"] == "data=2,model=2"
    assert details["device_variables"]["CPU_NUM_DEVICES"] == "4"


def test_trainer_trains_as_on_gloo(tmp_path: Path) -> None:
    words = ["--init", "--max_steps", "8", "--logging_steps", "2", "--save_steps", "4"]  # 6 are an epoch
    words += ["--per_device_train_batch_size", "17", "--learning_rate", "1e-2", "--output_dir"]
    outputs = [str(tmp_path / name) for name in ("xla", "resumed", "gloo")]
    resume = ["--resume_from_checkpoint", f"{outputs[0]}/checkpoint-4"]
    jobs = [
        {"backend": "xla", "words": [*words, outputs[0]]},
        {"backend": "xla", "words": [*words, outputs[1], *resume]},
        {"backend": "gloo", "words": [*words, outputs[2]]},
    ]
    _start(2, sys.executable, IN_TURN, str(SCRIPTS / "course.py"), str(tmp_path), *map(json.dumps, jobs))
    xla, resumed, gloo = (json.loads(Path(output, "found.json").read_text()) for output in outputs)
    assert (xla["backend"], gloo["backend"]) == ("xla_ccl", "gloo")
    assert xla["losses"] == pytest.approx(gloo["losses"], abs=2e-4)
    assert xla["metrics"]["eval_loss"] == pytest.approx(gloo["metrics"]["eval_loss"], abs=1e-4)
    assert resumed["metrics"]["eval_loss"] == pytest.approx(xla["metrics"]["eval_loss"], abs=1e-4)


def test_the_example_of_a_language_model_trains_on_a_mesh_as_on_gloo(tmp_path: Path) -> None:
    words = ["--train_files", ast.__file__, "--vocab_size", "400", "--block_size", "32", "--max_steps", "8"]
    words += ["--config_overrides", "n_layer=1,n_embd=32,n_head=2", "--logging_steps", "1", "--learning_rate", "5e-3"]
    words += ["--eval_files", json.__file__, "--per_device_train_batch_size", "8"]
    record = tmp_path / "record.json"
    gloo, xla = (
        trained(tmp_path / options[1], 1, "language_model", *words, options=["--record", str(record), *options])[1]
        for options in (["--backend", "gloo"], ["--backend", "xla", "--mesh", "data=2,model=2"])
    )
    found = json.loads(record.read_text())
    assert found["details"]["graphs_compiled"] > 2
    assert found["tokens_per_second"] is None  # to count them, the device would compute at each batch
    assert len(gloo["loss"]) == 8
    assert xla["loss"] == pytest.approx(gloo["loss"], abs=1e-3)
    assert xla["eval_perplexity"] == pytest.approx(gloo["eval_perplexity"], rel=2e-3)


def test_bfloat16_tied_parameters_and_a_mesh_of_one_device() -> None:
    program = (
        "import torch, cpudist;"
        "world = cpudist.init('xla', mesh='data=-1');"
        "tied = torch.nn.Sequential(torch.nn.Embedding(4, 8), torch.nn.Linear(8, 4));"
        "tied[1].weight = tied[0].weight; before = torch.optim.SGD(tied.parameters()).param_groups[0]['params'];"
        "tied.to(world.device);"
        "print('tied:', tied[1].weight is tied[0].weight is before[0], before[0].device, len(list(tied.parameters())));"
        "model = torch.nn.Linear(8, 8).to(world.device);"
        "optimizer = torch.optim.AdamW(model.parameters());"
        "model, optimizer = cpudist.optimize(model, optimizer, dtype=torch.bfloat16);"
        "model = cpudist.wrap(model, find_unused_parameters=True, process_group=None);"
        "inputs = torch.rand(4, 8).to(world.device); outputs = model(inputs); outputs.sum().backward();"
        "cpudist.step(optimizer); exact = torch.nn.functional.linear(inputs, *model.parameters());"
        "print(outputs.dtype, 0 < (outputs - exact).abs().max().item() < 0.05)\n"
        "try: cpudist.wrap(model, process_group=torch.distributed.group.WORLD)\n"
        "except cpudist.UserError as error: print(error)\n"
        "cpudist.shutdown()"
    )
    result = _start(1, sys.executable, "-c", program)
    assert "tied: True xla:0 2\n" in result.stdout, result.output
    assert "torch.float32 True\n" in result.stdout, result.output
    assert "under --mesh there is no DDP to take process_group=, which changes results" in result.stdout, result.output
    assert "optimize: native, bfloat16 autocast" in result.stderr, result.output
    assert "warning: --mesh data=-1 has one device; on the CPU set CPU_NUM_DEVICES" in result.stderr, result.output
