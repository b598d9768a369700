"""Runs one program in several jobs, one after the other in the same processes: `in_turn.py PROGRAM FOLDER JOB …`.

A JOB is the arguments of `cpudist.init` as JSON; "made up" is xla on devices that the runtime connects. The program's
arguments are the job's "words", if it has any, otherwise a folder of the job's own in FOLDER.
"""

import json
import runpy
import sys
from functools import partial

import cpudist

init, (program, folder, *jobs) = cpudist.init, sys.argv[1:]
for number, job in enumerate(jobs):
    if job == "made up":
        import made_up

        made_up.connect()
    options = {"backend": "xla"} if job == "made up" else json.loads(job)
    sys.argv[1:] = options.pop("words", [f"{folder}/{number}"])
    cpudist.init = partial(init, **options)
    runpy.run_path(program, run_name="__main__")
    cpudist.shutdown()
