"""Makes a model and its optimizer faster on this CPU: Intel's extension where it fits, PyTorch's own means otherwise.

One module per means: ipex.py, master_weights.py and precision.py (bfloat16), native.py (fused optimizers, memory
format, compilation), memory.py (what becomes of freed memory); fastest.py chooses among them, by what has been
measured, and choice.py does it and says so in one line.

It must not know environments, transformers, recipes or command lines.
"""

from cpudist.optimization.fastest import optimize

__all__ = ["optimize"]
