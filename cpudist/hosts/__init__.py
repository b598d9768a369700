"""`cpudist launch`: start a job on its hosts, restart it after a failure, and leave no process behind.

- `hostfile.py`: read a hostfile, spread ranks over hosts, write the file that an MPI reads.
- `check.py`: find faults of the hosts, or wait until they are up. `connections.py`: which of them connect for a trial.
- `remote.py`: run programs there, over ssh.
- `host_plan.py`: place the ranks on hosts. `run.py`: start and restart the job; `launch_options.py`: its options.
- `supervise.py`: run the launcher once. `restarts.py`: decide whether to run it again.
- `node_agents.py`: start agents and read their reports. `node_agent.py`: the agent, which ends the job's processes.

It runs before any rank does and must not import torch, MPI, transformers, backends, jobs, optimization or programs.
"""
