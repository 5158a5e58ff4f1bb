"""What a worker does with one step of the scheduler, apart from vLLM and torch: zero, check, run, confirm, acknowledge.

The order is the security argument, so it is in one place and testable without an engine: zeroes are enqueued before the forward
pass, tables are checked against the shadow table before they reach the model runner, and the acknowledgement is made only after
the zeroes are confirmed to be in memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .errors import MissingAck
from .guard_worker import Findings, ShadowTable, Table
from .protocol import ATTRIBUTE, StepAck, StepOrder


class Confirmable(Protocol):
    """Zeroes on their way into memory."""

    def confirm(self) -> None:
        """Returns once they are there; raises ScrubFailed if they are not."""


class Scrubs(Protocol):
    """What zeroes blocks."""

    def zero(self, urgent: Sequence[int], idle: Sequence[int]) -> Confirmable:
        """Enqueues zeroes: `urgent` blocks are zero in front of this step's forward pass, `idle` ones once it is confirmed."""


@dataclass(slots=True)
class Pending:
    """An acknowledgement that may be given once its zeroes are confirmed."""

    ack: StepAck
    scrub: Confirmable

    def settle(self, output: Any) -> Any:
        """`output` with the acknowledgement attached; waits for the zeroes first.

        A copy: vLLM answers steps without tokens with one shared empty output.
        """
        self.scrub.confirm()
        output = copy.copy(output)
        setattr(output, ATTRIBUTE, self.ack)
        return output


class StepKeeper:
    """Prepares each step of one worker."""

    def __init__(self, shadow: ShadowTable, scrubs: Scrubs, void_table: Callable[[str, Table], None]) -> None:
        """Args:
        shadow: this worker's book of owners.
        scrubs: zeroes blocks of this worker's cache.
        void_table: replaces the table that the model runner holds for a request.
        """
        self._shadow, self._scrubs, self._void_table = shadow, scrubs, void_table

    def prepare(self, step: Any) -> Pending:
        """Does everything that must precede the forward pass of `step`, a SchedulerOutput, and corrects its tables.

        Raises:
            MissingAck: the step carries no order, so nobody would learn what was zeroed.
        """
        order: StepOrder | None = getattr(step, ATTRIBUTE, None)
        if order is None:
            raise MissingAck("a step came without a scrub order: blockwarden's scheduler is not in this engine")
        scrub = self._scrubs.zero(self._shadow.urgent(order), order.scrub)
        self._shadow.finish(step.finished_req_ids)
        self._shadow.take(order)
        findings = self._check(step)
        for request, table in findings.voided.items():
            self._void_table(request, table)
        return Pending(StepAck(order.epoch, len(order.scrub), findings.violations), scrub)

    def _check(self, step: Any) -> Findings:
        findings, cached = Findings(), step.scheduled_cached_reqs
        for new in step.scheduled_new_reqs:
            self._shadow.check_whole(new.req_id, new.block_ids, findings)
            new.block_ids = findings.tables.get(new.req_id, new.block_ids)
        sent = list(zip(cached.req_ids, cached.new_block_ids, strict=True))
        for request, ids in sent:
            if request in cached.resumed_req_ids:
                self._shadow.check_whole(request, ids or (), findings)
        self._shadow.check_kept(cached.req_ids, findings)
        for at, (request, ids) in enumerate(sent):
            if ids and request not in cached.resumed_req_ids:
                self._shadow.check_more(request, ids, findings)
            if request in findings.tables:
                cached.new_block_ids[at] = findings.tables[request]
        return findings
