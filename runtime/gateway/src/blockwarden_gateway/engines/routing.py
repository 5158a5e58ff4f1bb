"""Which of several engines serves a request. Pure.

Rendezvous hashing: every engine gets a score for the request's key, the highest wins; when an engine comes or goes, only the
requests that it wins move. The key is the salt and the prompt's beginning, so one trust domain's cache hits survive scaling
while nobody else's cache steers anything. The load bound keeps one hot key from piling up on one engine.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Final

LOAD_FACTOR: Final = 1.25


def choose(loads: Mapping[str, int], key: bytes) -> str | None:
    """The engine for `key`, None where there is none.

    Args:
        loads: requests in flight by engine id.
        key: what requests that should meet have in common.
    """
    if not loads:
        return None
    bound = math.ceil(LOAD_FACTOR * (sum(loads.values()) + 1) / len(loads))
    ranked = sorted(loads, key=lambda engine: _score(engine, key), reverse=True)
    return next(engine for engine in ranked if loads[engine] < bound)


def routing_key(salt: str, beginning: bytes) -> bytes:
    return hashlib.blake2b(beginning, key=salt.encode()[:64], digest_size=16).digest()


def _score(engine: str, key: bytes) -> bytes:
    return hashlib.blake2b(engine.encode(), key=key, digest_size=8).digest()
