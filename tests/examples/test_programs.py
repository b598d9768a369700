"""Other projects' programs have torchrun's losses to the last printed digit; scripts/programs.sh trains more."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from jobs import completed, mpirun, run, torchrun, train

PROGRAMS = Path(__file__).parents[2] / "scripts" / "programs"


@pytest.mark.job
@pytest.mark.parametrize(
    ("program", "package", "number"),
    [("fsdp", "torch", 36), ("trl_sft", "trl", 8), ("deepspeed_zero", "deepspeed", 32)],
)
def test_losses_are_torchruns(program: str, package: str, number: int, tmp_path: Path) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    script, options = str(PROGRAMS / f"{program}.py"), {"env": {"DS_ACCELERATOR": "cpu"}, "cwd": tmp_path}
    # Not its status: a script without destroy_process_group now and then aborts in gloo's threads at its exit.
    expected = run(torchrun(2, script), timeout=240, **options)
    result = completed(mpirun(2, *train(script)), timeout=240, **options)
    losses = [sorted(re.findall(r"loss (\d+\.\d{6})", each.stdout)) for each in (expected, result)]
    assert len(losses[0]) == number, expected.output
    assert losses[0] == losses[1]
