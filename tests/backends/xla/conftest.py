"""Settings of the jobs on xla."""

import os

# Most of the time of these jobs is compiling, which takes a fifth of the time without LLVM's expensive passes.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
