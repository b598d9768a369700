"""Registers the name ``ccl`` with torch.

torch calls `register` at the end of `import torch` (entry-point group ``torch.backends``), and `import cpudist` calls
it too, so a script needs no other import. The call is cheap and does not fail: nothing is compiled or loaded before the
first process group is created.
"""

from typing import Any

from cpudist.backends.ccl.intel import offer_to_scripts


def register() -> None:
    """Register ``ccl`` with `torch.distributed` for CPU tensors, unless cpudist's ``ccl`` is registered already."""
    import torch.distributed as dist

    offer_to_scripts()
    if dist.is_available() and getattr(dist.Backend._plugins.get("CCL"), "creator_fn", None) is not _create:
        dist.Backend.register_backend("ccl", _create, extended_api=True, devices=["cpu"])


def _create(options: Any, backend_options: Any) -> Any:
    """Create a process group from torch's ``_DistributedBackendOptions`` and the user's ``pg_options``."""
    from cpudist.backends.ccl.ccl_group import create_group

    return create_group(options, backend_options)
