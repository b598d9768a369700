"""Keeps Hugging Face's accelerate and Trainer on the job's own process group, whatever backend it runs on.

Left alone, accelerate (1.15) and Trainer (4.57, 5.x) would take torch_xla for a CPU job where that is installed,
train every rank alone, refuse or ignore the names "ccl", `use_ipex` and `no_cuda`, and ignore `ddp_timeout`. This
package is the one place that changes them, and only from `install` to `remove`. One module per part that is changed:
state.py (accelerate's choice of a backend), arguments.py (TrainingArguments), trainer.py and loss.py (Trainer);
patch.py undoes it all; on_import.py waits for the libraries, which are never imported here.

It must not know who started the job, nor of targets, recipes and run records.
"""

from cpudist.huggingface.install import install, remove

__all__ = ["install", "remove"]
