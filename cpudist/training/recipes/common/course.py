"""The course of a recipe once it has its Trainer: train, evaluate, leave everything behind."""

from __future__ import annotations

from collections.abc import Callable

from transformers import Trainer

from cpudist.training.recipes.common import outcome


def run(
    trainer: Trainer,
    recipe: str,
    checkpoint: str | None,
    evaluate: Callable[[Trainer], dict[str, float]] = Trainer.evaluate,
) -> None:
    """Do what --do_train and --do_eval ask for; `evaluate` returns the metrics to report."""
    if trainer.args.do_train:
        metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics
        trainer.save_model()
        trainer.save_state()
        outcome.report(trainer, "train", metrics)
    if trainer.args.do_eval:
        outcome.report(trainer, "eval", evaluate(trainer))
    if trainer.args.do_train:
        outcome.draw_curve(trainer, recipe)
