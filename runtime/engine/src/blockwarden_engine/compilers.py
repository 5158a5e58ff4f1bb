"""Compiled grammars of structured output, cached by trust scope and bounded per tenant.

vLLM keeps one compiler for everybody. What it has compiled once it answers at once, whole grammars and single rules alike: a
schema whose title differs still hits. So the time to the first token would tell whether another tenant has used a schema, or
a part of it, and one tenant's schemas would push out all others'. Here each trust scope has a compiler of its own. Knows no
vLLM: the compilers come from a factory.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

SCOPES: Final = 256
"""Compilers of one tenant at most: one that has compiled nothing yet keeps no bytes, and is there all the same."""


class TenantCompilers:
    """Compilers by tenant and scope; thread-safe, and no request's grammar is compiled under the lock.

    A tenant's compilers together keep at most its share of the budget, an equal part, and are at most SCOPES: when there is more,
    those used longest ago go.
    """

    def __init__(self, make: Callable[[int], Any], budget: int) -> None:
        """Args:
        make: a new compiler whose cache keeps about this many bytes; `get_cache_size_bytes` and `clear_cache` are asked of it.
        budget: bytes for all tenants together.
        """
        self._make, self._budget = make, budget
        self._lock = threading.Lock()
        self._scopes: dict[str, OrderedDict[tuple[int, str], Any]] = {}

    def of(self, tenant: str, generation: int, salt: str, floors: Mapping[str, int]) -> Any:
        """The compiler of one trust scope, made on first use.

        Args:
            tenant, generation, salt: the scope.
            floors: the oldest salt generation of each tenant that is served; what else is kept is dropped.
        """
        with self._lock:
            self._forget(floors)
            scopes = self._scopes.setdefault(tenant, OrderedDict())
            if (generation, salt) not in scopes:
                scopes[generation, salt] = self._make(self._share(floors))
            scopes.move_to_end((generation, salt))
            return scopes[generation, salt]

    def settle(self, tenant: str, floors: Mapping[str, int]) -> None:
        """Drops what the tenant keeps beyond its bounds; to be called after each compilation."""
        with self._lock:
            scopes, share = self._scopes.get(tenant, OrderedDict()), self._share(floors)
            while len(scopes) > 1 and (len(scopes) > SCOPES or self._kept(scopes) > share):
                scopes.popitem(last=False)
            if self._kept(scopes) > share:  # one scope's alone are too much: its next grammars are compiled anew
                next(iter(scopes.values())).clear_cache()

    def kept(self, tenant: str) -> int:
        """Bytes that the tenant's compilers keep."""
        with self._lock:
            return self._kept(self._scopes.get(tenant, {}))

    def _forget(self, floors: Mapping[str, int]) -> None:
        for tenant in [tenant for tenant in self._scopes if tenant not in floors]:
            del self._scopes[tenant]
        for tenant, scopes in self._scopes.items():
            for scope in [scope for scope in scopes if scope[0] < floors[tenant]]:
                del scopes[scope]

    def _share(self, floors: Mapping[str, int]) -> int:
        return self._budget // max(1, len(floors))

    @staticmethod
    def _kept(scopes: Mapping[tuple[int, str], Any]) -> int:
        return sum(compiler.get_cache_size_bytes() for compiler in scopes.values())
