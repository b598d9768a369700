"""Models whose modules share a parameter, such as the embedding and the output layer of a language model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from cpudist.changes import Changes


def keep_tied(changes: Changes) -> None:
    """Let modules that share a parameter share it after ``model.to(device)``, until `changes` are undone.

    torch (2.9) cannot change the device of a parameter to XLA's in place. It makes a new one for each module.
    """
    original = torch.nn.Module.to

    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        places: dict[Any, list[tuple[dict[str, Any], str]]] = {}
        for module in self.modules():
            for name, parameter in module._parameters.items():
                places.setdefault(parameter, []).append((module._parameters, name))
        moved = original(self, *args, **kwargs)
        for (first, own), *others in places.values():
            for parameters, name in others:
                parameters[name] = first[own]
        return moved

    changes.attribute(torch.nn.Module, "to", to)
