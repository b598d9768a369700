-- A module file for Lmod: copy it to MODULEPATH/cpudist/0.2.0.lua. `module load cpudist` then puts the environment first
-- on PATH, in which `pip install --no-index --find-links wheels --require-hashes -r wheels/requirements.txt` was run.
local environment = "/opt/cpudist/0.2.0"

help("Distributed PyTorch training on CPU nodes: cpudist doctor, cpudist docs")
whatis("Name: cpudist")
whatis("Version: 0.2.0")

-- They bring another mpirun, or another Python's packages.
conflict("intelmpi", "impi", "openmpi", "mpich", "python")
prepend_path("PATH", pathJoin(environment, "bin"))
setenv("VIRTUAL_ENV", environment)
unsetenv("PYTHONHOME")
