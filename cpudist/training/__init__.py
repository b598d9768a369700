"""What runs on every rank of a training job, once the ranks have met.

Running the user's script, module or a recipe; ending the whole job when one rank fails; quietening all ranks
but the first; keeping Hugging Face's Trainer and accelerate on the job's process group; measuring steps and
writing the run record.

It stands on `cpudist.session` alone: it must not know which launcher started the job nor what the process
group is made of (no oneCCL, no MPI calls but the one that ends an MPI job, in failure.py).
"""
