"""The speed of matrix products on each host, as `cpudist test` has measured it, and a training's share of it.

A training's operations are those of products with the model's weights: 6 for each token and weight (4 if the weight is
frozen), without attention, embeddings and padding. The speeds are stored in the user's cache folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cpudist import typed_json, user_cache

if TYPE_CHECKING:
    import torch

    from cpudist.world import RankInfo

_FILE, _CORES = "products.json", "cores"

SPEED, OF_CORE, SHARE = "tokens_per_second", "tokens_per_second_per_core", "product_share"


def save(hosts: Mapping[str, tuple[int, Mapping[str, float]]]) -> None:
    """Store each host's number of cores and speed per core, given the speed of all its cores by number format."""
    stored = user_cache.read(_FILE)
    for name, (cores, speeds) in hosts.items():
        stored[name] = {_CORES: cores, **{dtype: speed / cores for dtype, speed in speeds.items()}}
    user_cache.write(_FILE, stored)


def of_ranks(members: Sequence[RankInfo], dtype: str | None) -> float | None:
    """Return the operations per second of all threads of the ranks; None if one of the hosts was not measured."""
    try:
        stored = _stored()
        return sum(member.threads * stored[member.host][dtype or ""] for member in members)
    except (ValueError, KeyError):  # the file is of another version, or the host was not measured
        return None


def of_hosts(names: Iterable[str]) -> dict[str, float]:
    """Return the operations per second of whole hosts in float32, by name; empty if one of them was not measured."""
    try:
        stored = _stored()
        return {name: stored[name][_CORES] * stored[name]["float32"] for name in names}
    except (ValueError, KeyError):
        return {}


def _stored() -> dict[str, dict[str, float]]:
    return typed_json.read(dict[str, dict[str, float]], user_cache.read(_FILE))


def of_token(model: torch.nn.Module) -> int:
    """Return the operations for one token in the products with the model's weights, forward and backward."""
    from torch.nn import Embedding  # imported late: commands import this module without torch

    weights = (
        weight
        for module in model.modules()
        if not isinstance(module, Embedding)
        for weight in module.parameters(recurse=False)
        if weight.dim() > 1
    )
    return sum((6 if weight.requires_grad else 4) * weight.numel() for weight in weights)


def text(figures: Mapping[str, Any]) -> str:
    """Return the tokens per second in `figures` as a part of a sentence; empty if unknown."""
    speed, of_core, share = (figures.get(name) for name in (SPEED, OF_CORE, SHARE))
    if not speed:
        return ""
    of_products = f", {100 * share:.0f} % of its product speed" if share else ""
    return f"{speed:.4g} tokens/s" + (f" ({of_core:.4g} a core{of_products})" if of_core else "")
