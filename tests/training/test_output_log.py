"""`--log-dir`: a file for each rank, with all of its output."""

from pathlib import Path

import pytest
from jobs import mpirun, run, train

from cpudist.errors import UserError
from cpudist.training.output_log import log_output

_SCRIPT = """
import os, sys
import torch.distributed as dist
print("printed by", dist.get_rank())
os.system("echo by a child")
sys.stderr.write(f"error of {dist.get_rank()}\\n")
dist.barrier()
if sys.argv[1:]:
    os.write(1, b"last words\\n")
    os.kill(os.getpid(), 9)
"""


@pytest.mark.job
def test_each_rank_has_a_file_and_the_output_is_shown_as_before(tmp_path: Path) -> None:
    script, logs = tmp_path / "script.py", tmp_path / "new" / "logs"
    script.write_text(_SCRIPT)
    command = mpirun(2, *train("--backend", "gloo", "--log-dir", str(logs), str(script)))
    shown = run(command, timeout=60)
    assert shown.returncode == 0, shown.output
    for rank in (0, 1):
        text = (logs / f"rank-{rank}.log").read_text()
        for line in (f"printed by {rank}\n", "by a child\n", f"error of {rank}\n"):
            assert line in text
        assert f"printed by {1 - rank}\n" not in text
        assert f"printed by {rank}\n" in shown.stdout
        assert f"error of {rank}\n" in shown.stderr
    assert "cpudist: completed after" in (logs / "rank-0.log").read_text()

    assert run([*command, "killed"], timeout=60).returncode != 0
    for rank in (0, 1):
        text = (logs / f"rank-{rank}.log").read_text()
        assert "last words\n" in text
        assert text.count(f"printed by {rank}\n") == 1, "the file of an earlier run is replaced"

    assert run(command, timeout=60, env={"CPUDIST_RESTART_COUNT": "1"}).returncode == 0
    assert (logs / "rank-1.log").read_text().count("printed by 1\n") == 2, "a restart appends"


def test_a_folder_that_cannot_be_written_is_a_user_error() -> None:
    with pytest.raises(UserError, match=r"cannot write /proc/logs/rank-0.log \(No such file"):
        log_output(Path("/proc/logs"), 0, again=False)
