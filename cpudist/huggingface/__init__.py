"""Keep Hugging Face's accelerate and Trainer on the job's process group, devices and checkpoints.

`PATCHES` lists the parts of the two libraries that cpudist replaces or relies on during a job, with the reason. A
backend adds patches for its devices (`Backend.change_libraries`). A module is patched after the script has imported it.
Only callbacks.py imports transformers, and it is imported only then. To support another version, run tests/huggingface
with that version, correct the patches that no longer fit, and widen `KNOWN`.

This package must not import launchers, programs or command lines.
"""

import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from cpudist.checkpoints.publishing import Background
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.huggingface import accelerate_patches, padding, resuming, trainer, trainer_checkpoints, training_arguments
from cpudist.job import Job
from cpudist.optimization.native import own_compile_cache
from cpudist.patching.on_import import after_import
from cpudist.patching.patch import Patch, apply

__all__ = ["KNOWN", "PATCHES", "Context", "add_callbacks", "install"]

# Versions that cpudist patches: from the lowest one that the test suite has run with to the next major release.
KNOWN = {"accelerate": ">=1.3,<2", "transformers": ">=4.57.6,<6"}


@dataclass(frozen=True)
class Context:
    """The shared state of one job's patches."""

    job: Job
    # For each Trainer, the batch geometry and the number of its training, for `Manifest.trainer`.
    trainings: WeakKeyDictionary[Any, dict[str, int]] = field(default_factory=WeakKeyDictionary)
    # For each Trainer with unequal shares, the weights of the batches of the current step.
    weights: WeakKeyDictionary[Any, Iterator[float]] = field(default_factory=WeakKeyDictionary)
    background: Background = field(default_factory=Background)
    # The packages that are not patched, because cpudist does not know their version.
    unknown: set[str] = field(default_factory=set)


PATCHES = (  # The patches of a module are applied in this order.
    Patch(
        "accelerate.state:PartialState._prepare_backend",
        "accelerate refuses the backend ccl, and trains without gradient synchronisation unless cpu=True",
        accelerate_patches.prepare_backend,
        "self, cpu, sagemaker_dp, backend",
        until="never: accelerate 1.13 removed ccl (huggingface/accelerate#3883)",
    ),
    Patch(
        "accelerate.state:AcceleratorState.__init__",
        "accelerate computes in float32 on CPUs where float16 is asked for, without a warning",
        accelerate_patches.state_init,
        "self, mixed_precision, ...",
        until="accelerate refuses float16 on CPUs",
    ),
    Patch("accelerate.state:DistributedType.MULTI_CPU", "the value that _prepare_backend returns"),
    Patch(
        "accelerate.data_loader:BatchSamplerShard",
        "resumed on a number of ranks that does not divide a step's samples, ranks get unequal shares",
        parameters="batch_sampler, num_processes, process_index, split_batches, even_batches",
    ),
    Patch(
        "accelerate.accelerator:Accelerator.prepare_model",
        "gradients are compressed, as the record says",
        accelerate_patches.prepare_model,
        "self, model, device_placement, evaluation_mode",
    ),
    Patch(
        "accelerate.accelerator:Accelerator.clip_grad_norm_",
        "torch computes the norm of gradients on one thread; replaced on the Accelerator of a Trainer with --use_ipex",
        parameters="self, parameters, max_norm, norm_type",
    ),
    Patch(
        "transformers.training_args:TrainingArguments",
        "ddp_compress, own_operators, trim_padding are ours, 5 has no use_ipex, no_cuda; ddp_backend does not take ccl",
        training_arguments.change_fields,
        attributes="use_cpu, local_rank, fp16, fp16_full_eval, ddp_backend, ddp_timeout, ddp_bucket_cap_mb, "
        "average_tokens_across_devices",
        until="never: transformers 5 removed ccl and IPEX (huggingface/transformers#42852)",
    ),
    Patch(
        "transformers.training_args:TrainingArguments.__post_init__",
        "a CPU job needs no --use_cpu; ddp_timeout has no effect on CPUs; the job sets local_rank and bucket sizes",
        training_arguments.post_init,
        "self",
    ),
    Patch(
        "transformers.trainer:Trainer._wrap_model",
        "the optimizer exists and DDP does not yet: the moment for Intel's extension; DDP gets bucket views",
        trainer.wrap_model,
        "self, model, training, dataloader",
    ),
    Patch(
        "transformers.trainer:Trainer.compute_loss",
        "the loss of models that ignore num_items_in_batch is too large by the number of ranks and accumulated batches",
        trainer.compute_loss,
        "self, model, inputs, return_outputs, num_items_in_batch",
        until="the measured factor is 1 (huggingface/transformers#37766)",
    ),
    Patch(
        "transformers.trainer:Trainer.compute_loss",
        "batches of training are mostly padding: --trim_padding leaves it out, or one line says what that would gain",
        padding.compute_loss,
        "self, model, inputs, return_outputs, num_items_in_batch",
    ),
    Patch(
        "transformers.trainer:Trainer._maybe_log_save_evaluate",
        "the run record has the first and the last loss, which Trainer may not log; train_loss is of all ranks",
        trainer.note_loss,
        "self, tr_loss, ...",
    ),
    Patch(
        "transformers.trainer:DEFAULT_CALLBACKS",
        "steps are timed and recorded, a signal saves a checkpoint, and lazy devices compute at the end of each step",
        attributes="append, remove",
    ),
    Patch(
        "transformers.trainer:Trainer._save_checkpoint",
        "a rank killed while it saves leaves half a checkpoint, and Trainer resumes from it",
        trainer_checkpoints.save_checkpoint,
        "self, model, trial",
        until="Trainer writes to a temporary folder (huggingface/transformers#27820)",
    ),
    Patch(
        "transformers.trainer:Trainer._load_best_model",
        "with --async-checkpoint the best checkpoint may not be complete yet",
        trainer_checkpoints.load_best_model,
        "self",
    ),
    Patch(
        "transformers.modeling_utils:safe_save_file",
        "with --async-checkpoint it is kept in memory, and written later",
        parameters="tensors, filename, metadata",
    ),
    Patch(
        "transformers.trainer:Trainer",
        "methods that are replaced on one Trainer while it saves, or trains with unequal shares",
        attributes="_get_output_dir, _push_from_checkpoint, get_train_dataloader, get_batch_samples, "
        "get_total_train_batch_size",
    ),
    Patch(
        "transformers.trainer:shutil",
        "a rank killed while it deletes leaves half a checkpoint, and Trainer resumes from it",
        trainer_checkpoints.replace_shutil,
        attributes="rmtree",
        until="Trainer renames a folder before it deletes it (huggingface/transformers#27820)",
    ),
    Patch(
        "transformers.trainer:Trainer.train",
        "a restarted script begins at step 0; on another number of ranks, a step would have another number of samples",
        resuming.train,
        "self, resume_from_checkpoint, ...",
    ),
    Patch(
        "transformers.trainer:TrainerState.load_from_json",
        "transformers 4 takes the batch size of the checkpoint instead of the one that keeps a step's samples",
        parameters="json_path",
        until="transformers 4 is not supported",
    ),
)

SIGNAL_PATCHES = (  # For any version. The context is the `CheckpointOnSignal`.
    Patch(
        "transformers.trainer:Trainer.train",
        "with --checkpoint-on-signal the job ends after the checkpoint",
        lambda train, on_signal: on_signal.ending(train),
    ),
)


def install(job: Job) -> None:
    """Keep accelerate and Trainer on the process group of the running job until it ends."""
    # If this is unset, accelerate divides the machine's cores among the ranks, even if they are pinned.
    job.changes.default_variable("OMP_NUM_THREADS", str(torch.get_num_threads()))
    # Before 1.8, accelerate applies Intel's extension wherever it is installed, also without --use_ipex.
    job.changes.default_variable("ACCELERATE_USE_IPEX", "false")
    job.changes.default_variable("TORCHINDUCTOR_CACHE_DIR", own_compile_cache(job.world.rank))
    context = Context(job)
    for name in dict.fromkeys(patch.module for patch in PATCHES):
        job.changes.then(after_import(name, functools.partial(_apply_all, context=context)))


def _apply_all(module: ModuleType, context: Context) -> None:
    """Apply the patches of `module` if its version is known and all of them fit; otherwise leave it unpatched."""
    from packaging.specifiers import SpecifierSet  # also a dependency of transformers and accelerate

    patches = [patch for patch in PATCHES if patch.module == module.__name__]
    package: Any = sys.modules[module.__name__.partition(".")[0]]
    known = SpecifierSet(KNOWN[package.__name__]).contains(package.__version__, prereleases=True)
    if known and all(patch.find() for patch in patches):
        apply(patches, context, context.job.changes)
    else:
        _leave(module, patches[0].target.partition(":")[2].partition(".")[0], package, context)


def _leave(module: ModuleType, name: str, package: Any, context: Context) -> None:
    """Leave `module` unpatched: allow calls of its class or function `name` on gloo; elsewhere they raise UserError.

    A call also raises if unpatched accelerate would not synchronise gradients, because it is not told to use the CPU.
    """
    job, version = context.job, f"{package.__name__} {package.__version__}"
    unknown = f"cpudist does not know {version} and cannot keep it on the job's process group"
    remedy = f"pip install '{package.__name__}{KNOWN[package.__name__]}'"
    owner: Any = getattr(module, name, None)
    if owner is None:
        raise UserError(f"{unknown}; {remedy}")
    if job.world.rank == 0 and package.__name__ not in context.unknown:
        means = "unchanged" if job.world.backend == "gloo" else "until its first use, which is an error"
        say(f"cpudist does not know {version}: going on with it {means}; {remedy}")
    context.unknown.add(package.__name__)
    target, attribute = (owner, "__init__") if isinstance(owner, type) else (module, name)
    original = getattr(target, attribute)

    @functools.wraps(original)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if job.world.backend != "gloo":
            raise UserError(f"{unknown}; {remedy}, or use --backend gloo")
        result = original(*args, **kwargs)
        if getattr(args[0] if args else None, "num_processes", job.world.size) == 1 < job.world.size:
            raise UserError(
                f"{version} would train without gradient synchronisation: give --use_cpu (cpu=True), or {remedy}"
            )
        return result

    job.changes.attribute(target, attribute, guarded)


def add_callbacks(job: Job) -> None:
    """Let every Trainer, of any version, record its steps, and save on signals if --checkpoint-on-signal is given."""
    job.changes.then(after_import("transformers.trainer", functools.partial(_add_callbacks, job=job)))


def _add_callbacks(trainer: Any, job: Job) -> None:
    from cpudist.huggingface.callbacks import CheckpointOnSignal, EndStep, StepTimer

    added: list[Any] = [EndStep(job.backend), StepTimer(job, job.record)]  # the timed step includes EndStep
    if job.options.checkpoint_on_signal:
        added.append(CheckpointOnSignal(job))
        apply(SIGNAL_PATCHES, added[-1], job.changes)
    trainer.DEFAULT_CALLBACKS.extend(added)
    job.changes.then(lambda: [trainer.DEFAULT_CALLBACKS.remove(callback) for callback in added])
