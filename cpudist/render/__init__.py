"""Manifests for Kubernetes and a batch script for Slurm, made from options as text.

Each kind is a class in a file of its own: its options, which of them contradict each other, and the text. `job.py` has
what all kinds share, `pods.py` what the kinds of pods share. Nothing here talks to a cluster. It must not know torch,
MPI, jobs or command lines.
"""

from __future__ import annotations

from cpudist.render.job import RenderedJob
from cpudist.render.mpijob import MpiJob
from cpudist.render.pytorchjob import PyTorchJob
from cpudist.render.slurm import SlurmJob
from cpudist.render.trainjob import TrainJob

KINDS: dict[str, type[RenderedJob]] = {
    "pytorchjob": PyTorchJob,
    "mpijob": MpiJob,
    "trainjob": TrainJob,
    "slurm": SlurmJob,
}
