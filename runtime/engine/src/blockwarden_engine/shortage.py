"""What a tenant that is short of blocks does: wait for a scrub, or preempt itself. Never anybody else.

One of the parts of the tenants' scheduler: mixed into it, and using its state.
"""

from __future__ import annotations

import time
from typing import Any

from vllm.v1.request import RequestStatus

Request = Any
_Scheduler: Any = object
"""To the type checker, whatever scheduler of vLLM this is mixed into."""


class TenantShortage(_Scheduler):
    """Answers to a shortage of blocks, in order: what is cached goes (and is waited for), the tenant's own later requests go, the
    request sits out steps until something changes.

    Attributes:
        _stalled: running requests for which nothing could be done in this step.
        _freeing: vLLM is freeing a request's blocks, not choosing a victim.
    """

    _stalled: list[Request]
    _freeing: bool

    def _make_room(self, request: Request, need: int) -> bool:
        """Whether a running request can have `need` more blocks; may preempt later requests of its tenant for them."""
        domain = request.trust_domain
        while need > self.ledger.allocatable(domain):
            self.pool.make_room(domain, need)
            if need <= self.ledger.prospect(domain):
                self.counters["waits_for_scrub"] += 1
                domain.tenant.counters["waits_for_scrub"] += 1
                return False
            if (victim := self._later_of_tenant(request)) is None:
                self._stalled.append(request)
                return False
            if not super()._request_blocks_can_be_freed(victim):
                victim.next_decode_eligible_step = self.current_step + 1  # it sits out this step, and can go when it drained
                return False
            self._preempt(victim)
        return True

    def _later_of_tenant(self, request: Request) -> Request | None:
        """The last running request of the same tenant that comes after `request`, and so has no tokens in this step yet."""
        for other in reversed(self.running):
            if other is request:
                return None
            if other.flow is request.flow and other.refused is None:
                return other
        return None

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._preempt_request(request, time.monotonic())
        self.waiting.deny(request.flow)
        self.counters["preempted_by_own_tenant"] += 1
        request.trust_domain.tenant.counters["preemptions"] += 1

    def _yield_stalled(self) -> None:
        """Of several requests that wait for blocks which only another one's end can free, the last gives up its own."""
        stalled, self._stalled = self._stalled, []
        coming = self.ledger.dirty or self.ledger.scrubbing or self.deferred_frees
        live = [request for request in stalled if request.status == RequestStatus.RUNNING and request.refused is None]
        if len(live) > 1 and not coming and super()._request_blocks_can_be_freed(live[-1]):
            self._preempt(live[-1])

    def _request_blocks_can_be_freed(self, request: Request) -> bool:
        failed = self.kv_cache_manager.failed
        if failed is not None and not self._freeing and failed.flow is not request.flow:
            self.counters["preemption_vetoes"] += 1
            return False
        return bool(super()._request_blocks_can_be_freed(request))

    def _free_request_blocks(self, request: Request) -> None:
        self._freeing = True
        try:
            super()._free_request_blocks(request)
        finally:
            self._freeing = False
