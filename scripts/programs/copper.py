"""Write copper.xyz: small clusters of copper, with energies and forces of ASE's effective medium theory."""

import numpy
from ase import Atoms
from ase.calculators.emt import EMT
from ase.io import write

random = numpy.random.default_rng(0)
clusters = []
for _ in range(16):
    corners = numpy.array([[0, 0, 0], [2.5, 0, 0], [0, 2.5, 0], [0, 0, 2.5]])
    cluster = Atoms("Cu4", corners + random.normal(0, 0.1, corners.shape), cell=[20] * 3)
    cluster.calc = EMT()
    cluster.info["REF_energy"] = cluster.get_potential_energy()
    cluster.arrays["REF_forces"] = cluster.get_forces()
    clusters.append(cluster)
write("copper.xyz", clusters, columns=["symbols", "positions", "REF_forces"], write_results=False)
