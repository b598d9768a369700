"""What runs on every rank of a training job, once the ranks have met.

Running the user's script, module or a recipe; quietening all ranks but the first; keeping Hugging Face's Trainer and
accelerate on the job's process group; measuring steps and writing the run record.

It stands on `cpudist.session` and `cpudist.failure` alone: it must not know which launcher started the job nor what the
process group is made of.
"""
