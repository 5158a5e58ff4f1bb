"""The queue of waiting requests: first come, first served within a tenant; between tenants, whoever was served least.

It takes the place of vLLM's one queue, in which a request that does not fit stops everybody behind it. A tenant that is denied
in a step is not offered again in that step, however many requests it has waiting, so a flood costs nothing to skip. Pure: it
has the methods of vLLM's RequestQueue and needs of a request only its `flow`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from .fairness import Flow

Request = Any


class TenantQueue:
    """Waiting requests by tenant. Requests without a flow are parked: counted, never offered, and only ever removed."""

    def __init__(self) -> None:
        self._queues: dict[Flow, deque[Request]] = {}
        self._parked: deque[Request] = deque()
        self._denied: set[Flow] = set()
        self._picked: Flow | None = None
        self._size = 0

    # ---- what the tenants' scheduler asks --------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Every tenant may be offered again."""
        self._denied.clear()
        self._picked = None

    def deny(self, flow: Flow) -> None:
        """The tenant is not offered again in this step; what is on offer stays so, for vLLM pops it to skip it."""
        self._denied.add(flow)

    def heads(self) -> Iterator[tuple[Flow, Request, int]]:
        """(flow, first request, number of requests) of each tenant with requests waiting."""
        return ((flow, queue[0], len(queue)) for flow, queue in self._queues.items() if queue)

    def follower(self, flow: Flow) -> Request | None:
        """The tenant's second request in the queue."""
        queue = self._queues.get(flow)
        return queue[1] if queue is not None and len(queue) > 1 else None

    # ---- what vLLM's scheduler asks --------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        self._queue(request).append(request)
        self._size += 1
        self._picked = None

    def prepend_request(self, request: Request) -> None:
        self._queue(request).appendleft(request)
        self._size += 1
        self._picked = None

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Puts skipped requests back; they come last skipped first, as vLLM collects them."""
        for request in requests:
            self.prepend_request(request)

    def peek_request(self) -> Request:
        flow = self._pick()
        if flow is None:
            raise IndexError("no tenant may be offered")
        return self._queues[flow][0]

    def pop_request(self) -> Request:
        request = self.peek_request()
        queue = self._queues[request.flow]
        queue.popleft()
        self._size -= 1
        self._picked = None
        if not queue:
            del self._queues[request.flow]
        return request

    def remove_request(self, request: Request) -> None:
        self.remove_requests((request,))

    def remove_requests(self, requests: Iterable[Request]) -> None:
        gone = set(requests)
        for flow in {request.flow for request in gone}:
            queue = self._parked if flow is None else self._queues.get(flow)
            if queue is None:
                continue
            kept = [request for request in queue if request not in gone]
            self._size -= len(queue) - len(kept)
            queue.clear()
            queue.extend(kept)
            if flow is not None and not kept:
                del self._queues[flow]
        self._picked = None

    def __bool__(self) -> bool:
        """Whether a request may be offered in this step; `len` counts all that wait."""
        return self._pick() is not None

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Request]:
        for queue in (*self._queues.values(), self._parked):
            yield from queue

    def _queue(self, request: Request) -> deque[Request]:
        return self._parked if request.flow is None else self._queues.setdefault(request.flow, deque())

    def _pick(self) -> Flow | None:
        if self._picked is None:
            open_flows = (flow for flow in self._queues if flow not in self._denied)
            self._picked = min(open_flows, key=_served, default=None)
        return self._picked


def _served(flow: Flow) -> float:
    return flow.served
