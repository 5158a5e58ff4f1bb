"""Which hooks this process runs with. `plugin` fills it in; scheduler, worker and middleware demand it when they are made.

Apart from both, so that what needs the plugin and what the plugin needs do not import each other. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from .errors import PluginMissing

_installed: dict[str, str] = {}
HOOKS: Final = MappingProxyType(_installed)
"""Hook name -> fingerprint of the vLLM source it stands on; empty until the plugin was registered in this process."""


def record_hooks(fingerprints: Mapping[str, str]) -> None:
    """Called by the plugin once every hook is in place."""
    _installed.update(fingerprints)


def require_plugin(who: str) -> None:
    """Raises:
    PluginMissing: the plugin has not been registered in this process.
    """
    if not _installed:
        raise PluginMissing(f"the {who} runs without blockwarden's plugin: start it with python -m blockwarden_engine")
