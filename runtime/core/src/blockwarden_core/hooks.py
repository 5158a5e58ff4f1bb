"""The hooks of vLLM that isolation stands on, by name.

An engine reports which of them are installed (`report.Attestation.hooks`); a gateway sends no traffic to one where a name is
missing. The engine side installs exactly these; a name is added or removed here and there in one commit.
"""

from __future__ import annotations

from typing import Final

REQUIRED_HOOKS: Final = frozenset({"scheduler", "pool", "manager", "worker", "process_inputs", "preprocess", "middleware"})
"""scheduler, pool, manager, worker: the classes that keep quotas, ownership and scrubbing. process_inputs, preprocess: the two
places where a request without a valid token is refused inside the engine. middleware: the one in front of its routes."""
