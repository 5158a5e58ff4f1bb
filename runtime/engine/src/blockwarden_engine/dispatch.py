"""What the tenants' scheduler sends with a step, and what it demands back: checked tables, scrub orders, acknowledgements.

One of the parts of the tenants' scheduler: mixed into it, and using its state.
"""

from __future__ import annotations

from typing import Any

from .errors import MismatchedAck, MissingAck
from .guard import drop_request, drop_sampled, find_foreign
from .protocol import ATTRIBUTE, StepAck, StepOrder

Request = Any
_Scheduler: Any = object
"""To the type checker, whatever scheduler of vLLM this is mixed into."""


class TenantDispatch(_Scheduler):
    """The end of a step's way down and the beginning of its way up."""

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        if found := self._find_foreign(scheduler_output):
            self._expel_from(scheduler_output, found)
        super()._update_after_schedule(scheduler_output)

    def _find_foreign(self, output: Any) -> list[tuple[str, int]]:
        return find_foreign(output, self.requests, self.ledger.domains)

    def _expel_from(self, output: Any, found: list[tuple[str, int]]) -> None:
        before = output.total_num_scheduled_tokens
        for request_id in dict.fromkeys(request_id for request_id, _ in found):
            request = self.requests[request_id]
            drop_request(output, request_id)
            self.prev_step_scheduled_req_ids.discard(request_id)
            self._expel(request)
        if self.defer_block_free and before and not output.total_num_scheduled_tokens:
            self.sched_step_seq -= 1  # vLLM counted a step that has no tokens any more, and whose end would not be counted

    def _expel(self, request: Request) -> None:
        """A table of the request named a block that is not its own: what is foreign goes from its tables, then it is ended."""
        domains, null = self.ledger.domains, self.pool.null_block
        for table in self._tables():
            if request.request_id in table:
                blocks = table[request.request_id]
                blocks[:] = [block if domains[block.block_id] is request.trust_domain else null for block in blocks]
        self.counters["guard_violations"] += 1
        if (domain := request.trust_domain) is not None:
            domain.tenant.counters["guard_refusals"] += 1
        if request.refused is None:
            self._refuse(request, "guard")

    def _attach_order(self, output: Any) -> None:
        epoch, scrub = self.ledger.order_scrub()
        grants, recycled = self.pool.take_grants()
        resumed = output.scheduled_cached_reqs.resumed_req_ids
        owners = {
            request_id: self.requests[request_id].trust_domain.owner
            for request_id in (*(new.req_id for new in output.scheduled_new_reqs), *resumed)
        }
        setattr(output, ATTRIBUTE, StepOrder(epoch, scrub, recycled, grants, owners))

    # ---- what comes back -------------------------------------------------------------------------------------------------

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Raises:
        ScrubError: the step's scrub is not confirmed by all ranks. The engine ends.
        """
        self.ledger.latency.look(self.clock())
        self._settle(getattr(scheduler_output, ATTRIBUTE), getattr(model_runner_output, ATTRIBUTE, None))
        for request_id, _ in getattr(model_runner_output, ATTRIBUTE).violations:
            if (request := self.requests.get(request_id)) is not None:
                drop_sampled(model_runner_output, request_id)
                self._expel(request)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self.pool.foreign:
            self._note_foreign()
        return outputs

    def _settle(self, order: StepOrder, ack: StepAck | None) -> None:
        if ack is None:
            raise MissingAck("a step came back without an acknowledgement: blockwarden's worker is not in this engine")
        if ack.epoch != order.epoch or ack.ranks != self._ranks:
            raise MismatchedAck(
                f"scrub epoch {ack.epoch} was acknowledged by {ack.ranks} ranks, and {order.epoch} by {self._ranks} was expected"
            )
        if order.epoch:
            self.ledger.acknowledge(ack.epoch, ack.scrubbed)
            self.counters["blocks_scrubbed"] += ack.scrubbed
        elif ack.scrubbed:
            raise MismatchedAck(f"{ack.scrubbed} blocks were zeroed in a step that ordered none")
        if order.zero:
            self.counters["blocks_zeroed_in_place"] += len(order.zero)

    def _note_foreign(self) -> None:
        """Foreign blocks that the pool left alone when a table was freed or hashed."""
        found, self.pool.foreign = self.pool.foreign, []
        for request_id, _ in found:
            request = self.requests.get(request_id) if request_id is not None else None
            if request is not None:
                self._expel(request)
            else:
                self.counters["guard_violations"] += 1
