"""Makes a model and its optimizer faster on this CPU: Intel's extension where it fits, PyTorch's own means otherwise.

One module per means: ipex.py, master_weights.py and precision.py (bfloat16), native.py (fused optimizers, memory
format, compilation), memory.py (what becomes of freed memory); optimize.py chooses among them, by what has been
measured, and says so in one line.

It must not know of Trainer, recipes or launchers.
"""

from cpudist.optimization.optimize import choices, forget, in_trainer, optimize

__all__ = ["choices", "forget", "in_trainer", "optimize"]
