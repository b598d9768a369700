"""All that there is to render."""

from __future__ import annotations

from cpudist.render import mpijob, pytorchjob, slurm, trainjob
from cpudist.render.option import Kind

KINDS: tuple[Kind, ...] = (pytorchjob.KIND, mpijob.KIND, trainjob.KIND, slurm.KIND)
