"""Runs course.py; kills rank 0 in each attempt: [[EVENT, PART], …] of Python's auditing, PART being in a path.

Files beside the output folder count the kills. Rank 0 prints the steps of the checkpoints that an attempt finds.
"""

import json
import os
import runpy
import signal
import sys
from pathlib import Path

kills = json.loads(sys.argv.pop(1))
output = Path(sys.argv[sys.argv.index("--output_dir") + 1])
number = len(list(output.parent.glob(f"{output.name}.killed*")))


def kill(name: str, args: tuple[object, ...]) -> None:
    if number < len(kills) and name == kills[number][0] and kills[number][1] in str(args[0]):
        Path(f"{output}.killed{number}").touch()
        os.kill(os.getpid(), signal.SIGKILL)


if os.environ["RANK"] == "0":
    found = sorted(int(path.name.removeprefix("checkpoint-")) for path in output.glob("checkpoint-*"))
    print(found, flush=True)
    sys.addaudithook(kill)
runpy.run_path(str(Path(__file__).with_name("course.py")), run_name="__main__")
