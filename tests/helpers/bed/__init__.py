"""Several hosts on this one machine, for tests: each with its own network, host name, processes and shared memory.

    with Bed(folder, hosts=2) as bed:
        bed.run("h0", ["mpirun", "-f", bed.hostfile(), "-n", "4", "-ppn", "2", "hostname"], timeout=60)

A host is a set of Linux namespaces with an sshd in it, and a virtual cable leads from it to a switch, which is a
network namespace too. MPI, oneCCL and gloo cannot tell such hosts from machines that share a file system. The machine's
own network is not touched, so any number of beds live side by side.

Namespaces without a name go with their last process, and cables, mounts and addresses go with them. So there is nothing
to take down but the first process of each host, and the kernel kills that one when pytest dies, however it dies.
"""

from bed.bed import Bed, missing

__all__ = ["Bed", "missing"]
