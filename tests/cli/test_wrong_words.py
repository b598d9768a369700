"""Wrong words on a command line, and files that are no records: status 2 and one line that names them."""

import json
import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from launcher_variables import TORCHRUN

from cpudist.cli import train
from cpudist.cli.main import main

# A command line, and what its error names.
WRONG = """\
cpudist fly | no command fly
cpudist stack | did you mean stacks?
cpudist train.py --epochs 3 | cpudist run train.py --epochs 3
cpudist --fast | COMMAND
cpudist build --json x | --json
cpudist build --output cut.json | cut.json is not a folder
cpudist bench | {collectives,hosts}
cpudist bench gpus | 'gpus'
cpudist bench collectives --only int8 | cpudist bench hosts --only
cpudist bench hosts --only fp4 | --only fp4
cpudist plan --measure --topology cut.json | --measure needs the machine itself
cpudist plan -- train.py | train.py is for --measure
cpudist plan --ppn 0 | '0'; see
cpudist plan --ppn core | 'core'
cpudist plan --data-workers -1 | --data-workers
cpudist plan --topology nowhere.xml | nowhere.xml does not exist
cpudist plan --topology /dev/zero | /dev/zero describes no machine
cpudist plan --topology cut.json | lscpu -p
cpudist launch | no TARGET
cpudist launch --nproc two -- t.py | 'two'
cpudist launch --min-nodes 2 -- t.py | --max-restarts
cpudist launch --timeout=20 -- t.py | --timeout
cpudist launch --mpi lam -- t.py | 'lam'
cpudist launch --hostfile /no/such/file -- t.py | /no/such/file
cpudist launch --hostfile hosts --nproc 5 -- t.py | 5 ranks do not fit on 2 hosts with room for 4
cpudist test --hostfile hosts --json /proc/cluster.json | /proc/cluster.json
cpudist top --json | --once
cpudist top --hostfile none | none
cpudist docs fast-networks | fast-networks
cpudist summary nowhere | No such file
cpudist summary cut.json | cut.json
cpudist summary list.json | list.json
cpudist summary empty | empty
cpudist forecast | required
cpudist forecast out | cpudist test
cpudist forecast out --hosts 0 | '0'
cpudist forecast out --network 10parsec | '10parsec'
cpudist forecast empty --network 1gbit | empty/cpudist.json
cpudist forecast old.json --network 1gbit | old.json
cpudist forecast none.py --network 1gbit | none.py
cpudist forecast out more --network 1gbit | more
cpudist forecast --network 1gbit -- -m | -m
cpudist-train nonsense | -m and a module
cpudist-train --bakend gloo run.py | --bakend
cpudist-train --timeout soon run.py | 'soon'
cpudist-train --timeout -3 run.py | --timeout
cpudist-train --stall 0 cut.json | --stall
cpudist-train --backend gloo | no TARGET
cpudist-train --compress zip run.py | zip
cpudist-train --timeline t.json --steps=5:5 run.py | 10:15
cpudist-train --timeline t.json --steps=5: run.py | 10:15
cpudist-train --metrics-port h0: run.py | 'h0:'
cpudist-train --metrics-port 65536 run.py | '65536'
"""

FILES = {
    "list.json": "[]",
    "cut.json": '{"world_size":',
    "old.json": json.dumps({"world_size": 2, "hosts": ["a"], "step_seconds": {"median": 1.0}}),
    "hosts": "h0:2\nh1:2\n",  # without addresses
}


@pytest.mark.job  # a check of hosts starts ssh
@pytest.mark.parametrize("line", WRONG.splitlines())
def test_one_line_names_them(
    line: str,
    records: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    records(Path("out"))
    Path("empty").mkdir()
    for name, text in FILES.items():
        Path(name).write_text(text)
    command, _, named = line.partition(" | ")
    program, *words = shlex.split(command)
    assert {"cpudist": main, "cpudist-train": train.main}[program](words) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n"), err[:7]) == ("", 1, "cpudist")
    assert named in err


@pytest.mark.parametrize("run", [main, train.main])
def test_under_a_launcher_rank_0_alone_names_them(
    run: Callable[[list[str]], int], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert run(["nonsense"]) == 2
    with suppress(SystemExit):
        run(["--help"])
    assert capfd.readouterr() == ("", "")
