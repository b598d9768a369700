"""A callback of Lightning that prints each loss."""

from typing import Any

from lightning.pytorch import Callback


class ShowLosses(Callback):
    def on_train_batch_end(self, trainer: Any, module: Any, outputs: dict[str, Any], batch: Any, number: int) -> None:
        print(f"loss {outputs['loss'].item():.6f}", flush=True)
