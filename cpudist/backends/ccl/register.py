"""Makes `init_process_group("ccl")` known to torch.

torch calls `register` at the end of `import torch` (entry-point group ``torch.backends``), and `import cpudist` calls
it too, so a script needs neither `import oneccl_bindings_for_pytorch` nor any other import. It must stay cheap and must
not fail: nothing is compiled or loaded before the first process group is created.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Register ``ccl`` with `torch.distributed` for CPU tensors; calling it again changes nothing."""
    import torch.distributed as dist

    if dist.is_available() and "CCL" not in dist.Backend._plugins:
        dist.Backend.register_backend("ccl", _create, extended_api=True, devices=["cpu"])


def _create(options: Any, _backend_options: Any) -> Any:
    """Create a process group; torch hands a ``_DistributedBackendOptions`` and the user's ``pg_options``."""
    from cpudist.backends.ccl.group import create_group

    return create_group(options)
