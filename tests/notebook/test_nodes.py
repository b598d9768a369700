"""How the cells of several nodes find each other."""

import math
from dataclasses import replace

import pytest
from clocks import Clock

from cpudist.errors import StartupTimeout
from cpudist.job.job_options import JobOptions
from cpudist.notebook.nodes import Nodes
from cpudist.notebook.result import Failure
from cpudist.notebook.settings import Settings
from cpudist.store import Address, Connection
from cpudist.store.process import StoreProcess

SETTINGS = Settings({}, 1, 2, 1, "127.0.0.1", 0, JobOptions(timeout=60), "no", 0, None, "job", "", 0)


@pytest.mark.job
def test_a_cell_waits_in_time_while_only_the_last_launch_is_there(clock: Clock) -> None:
    store = StoreProcess(["127.0.0.1"], 0, b"", 5)
    last = Connection(Address(("127.0.0.1",), store.port, b"", 5, "job/nodes"), 5)
    last.set({"left/1": b"1"})
    last.add("arrived/1", 1)
    with pytest.raises(StartupTimeout, match="no cell with node_rank=0 was found"):
        Nodes(replace(SETTINGS, master_port=store.port))
    assert 1060 <= clock.now <= 1061
    assert 200 < last.add("arrived/1", 0) <= 60 / 0.2 + 10
    last.close()
    store.close()


@pytest.mark.parametrize("text", ["", "[]", "null", "\0", '{"who": "a"}', '{"who": "a", "said": "b", "error": "x"}'])
def test_a_failure_that_another_version_reports_is_one_too(text: str) -> None:
    found = Failure.from_json(text)
    assert (found.error, found.mistake) == (None, False)
    own = Failure("rank 1", "failed", math.inf, "killed", b"pickled", mistake=True)
    assert replace(Failure.from_json(own.to_json()), at=math.inf) == replace(own, error=None)
