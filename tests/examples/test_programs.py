"""Other projects' programs have torchrun's losses to the last printed digit; scripts/programs.sh trains more."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from jobs import completed, mpirun, torchrun, train

PROGRAMS = Path(__file__).parents[2] / "scripts" / "programs"


@pytest.mark.job
@pytest.mark.parametrize(
    ("program", "package", "number"),
    [("fsdp", "torch", 36), ("trl_sft", "trl", 8), ("deepspeed_zero", "deepspeed", 32)],
)
def test_losses_are_torchruns(program: str, package: str, number: int, tmp_path: Path) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    script, losses = str(PROGRAMS / f"{program}.py"), []
    for command in torchrun(2, script), mpirun(2, *train(script)):
        result = completed(command, timeout=240, env={"DS_ACCELERATOR": "cpu"}, cwd=tmp_path)
        losses.append(sorted(re.findall(r"loss (\d+\.\d{6})", result.stdout)))
    assert len(losses[0]) == number
    assert losses[0] == losses[1]
