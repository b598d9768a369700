"""Environment variables by which `cpudist launch` and notebooks tell the ranks about their attempt of a job."""

JOB_ID = "CPUDIST_JOB_ID"  # in the environment of all processes of an attempt
RUN_ID = "CPUDIST_RUN_ID"  # all attempts share it; the user or a pod may set it
RESTART_COUNT = "CPUDIST_RESTART_COUNT"
EARLIER_SECONDS = "CPUDIST_EARLIER_SECONDS"  # seconds of the attempts before this one
SHARES = "CPUDIST_SHARES"  # the part of all samples with which each rank begins
OUTPUT = "CPUDIST_OUTPUT"  # whose output is shown: "rank0" or "all"
