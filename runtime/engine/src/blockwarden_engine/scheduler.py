"""vLLM's scheduler with tenants in it, synchronous and asynchronous, without a copy of its `schedule`.

What decides sits at four places that vLLM's own step passes through: the waiting queue (who is offered), the hook before a
waiting request starts (`_handle_blocked_waiting_request`: does it fit), the hook before any request gets its tokens
(`_reserve_prefill_lookahead`: how many, and are there blocks for them), and the end of the step (`_update_after_schedule`: is
every table its owner's). So vLLM's own answers to a shortage, preempting whoever is last and stopping the queue, never come up;
were they to, `_request_blocks_can_be_freed` vetoes a victim of another tenant. Imports vLLM: it subclasses its schedulers.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

import vllm.v1.core.kv_cache_coordinator as coordinator_module
import vllm.v1.core.sched.scheduler as scheduler_module
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreRequestType
from vllm.v1.request import RequestStatus

from blockwarden_core.policy import EnginePolicy
from blockwarden_core.report import EngineReport

from .aggregate import AckAggregator
from .departures import Departures
from .dispatch import TenantDispatch
from .enrol import Enrolment
from .errors import RequestRefused
from .fairness import Fairness, Usage
from .fit import Fit
from .installed import require_plugin
from .manager import TenantKVCacheManager
from .policy import PolicyFile, PolicyWatcher
from .pool import TenantBlockPool
from .quotas import plan_quotas
from .settings import observe_identity
from .shortage import TenantShortage
from .status import render_report, render_tenants
from .support import check_built, check_supported, replaced
from .waiting import TenantQueue

logger = logging.getLogger("vllm.blockwarden")

RUNNING: Final = RequestStatus.RUNNING
NEVER: Final = 1 << 60
"""A step that does not come: a request that waits for it is skipped in the running loop."""
Request = Any


class TenantScheduling(TenantShortage, TenantDispatch):
    """Mixed in front of a scheduler of vLLM.

    Attributes:
        clock: seconds, by which steps, grace periods and scrubs are timed; never goes back.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        require_plugin("scheduler")
        check_supported(vllm_config)
        with (
            replaced(coordinator_module, "BlockPool", TenantBlockPool),
            replaced(scheduler_module, "KVCacheManager", TenantKVCacheManager),
        ):
            super().__init__(vllm_config, *args, **kwargs)
        check_built(self, TenantBlockPool, TenantKVCacheManager)
        self.waiting = TenantQueue()
        self.pool: TenantBlockPool = self.kv_cache_manager.block_pool
        self.ledger = self.pool.ledger
        self.counters: Counter[str] = Counter()
        self._identity = observe_identity()
        self._ranks = vllm_config.parallel_config.world_size
        self._whole_prompts = not self.scheduler_config.enable_chunked_prefill
        tensors = self.kv_cache_config.kv_cache_tensors  # all of them lie in one buffer, and each says how large that is
        self._block_bytes = self._ranks * (tensors[0].size // self.kv_cache_config.num_blocks if tensors else 0)
        self._stalled: list[Request] = []
        self._steps: deque[tuple[Any, Usage, float]] = deque()
        self._last_end = 0.0
        self._freeing = False
        self._wake: Callable[[], None] = lambda: None
        # Blocks are freed, and hence scrubbed, only after the last step that was scheduled with them was processed.
        self.defer_block_free = vllm_config.max_concurrent_batches > 1
        self.kv_cache_manager.count_deferred = lambda: sum(len(blocks) for _, blocks in self.deferred_frees)
        self._start_policy(vllm_config)

    def _start_policy(self, vllm_config: Any) -> None:
        self.fairness = Fairness(self.max_num_scheduled_tokens, self.max_num_active_reqs)
        self._fit = Fit(
            self.kv_cache_manager,
            lookahead=self.num_lookahead_tokens,
            speculative=self.num_spec_tokens,
            max_model_len=self.max_model_len,
        )
        uid = self._identity.policy_uid
        self.policy_file = PolicyFile(self._identity.root, uid, check=self._check_plan)
        self._departures = Departures()
        self._applied: EnginePolicy = self.policy_file.load()
        self._table = self._fit.only_table()
        self._enrolment = Enrolment(self.policy_file, uid, self.ledger, self.fairness, self._fit)
        self._apply_policy(self._applied)
        self._watcher = PolicyWatcher(self.policy_file, on_change=self._on_policy)
        self._watcher.start()

    def _on_policy(self) -> None:
        self._wake()  # looked up now: the engine is attached after the watcher started

    def _check_plan(self, policy: EnginePolicy) -> None:
        plan_quotas(policy, self.ledger.size)

    def attach_engine(self, core: Any) -> None:
        """Called by the plugin once the engine core around this scheduler is complete.

        From then on a new policy wakes an idle engine, and every rank's acknowledgement is asked for.
        """
        if (inbox := getattr(core, "input_queue", None)) is not None:
            self._wake = lambda: inbox.put_nowait((EngineCoreRequestType.WAKEUP, None))
        if self._ranks > 1:
            core.model_executor.kv_output_aggregator = AckAggregator(core.model_executor.kv_output_aggregator)

    def shutdown(self) -> None:
        self._watcher.stop()
        super().shutdown()

    # ---- the policy ------------------------------------------------------------------------------------------------------

    def _take_policy(self) -> None:
        """The watch thread changes what is in force; what the ledger goes by changes here, between two steps."""
        policy = self.policy_file.in_force
        if policy is not None and policy is not self._applied:
            self._apply_policy(policy)
        elif self._departures.due <= self.clock():
            self._apply_policy(self._applied)

    def _apply_policy(self, policy: EnginePolicy) -> None:
        quotas = plan_quotas(policy, self.ledger.size)
        draining = self._departures.plan(
            quotas, pool=self.ledger.size, grace=policy.deregistration_grace_seconds, now=self.clock()
        )
        self._applied = policy
        self.pool.apply_quotas(quotas, draining)
        self.fairness.apply(policy, quotas, draining)
        for request in list(self.requests.values()):
            self._review(request)
        logger.info(
            "blockwarden: policy version %d in force for %d tenants; leaving: %s",
            policy.version, len(quotas), ", ".join(draining) or "nobody",
        )  # fmt: skip

    def _review(self, request: Request) -> None:
        if request.refused is not None:
            return
        try:
            self._enrolment.review(request)
        except RequestRefused as error:
            self._refuse(request, error.code)

    # ---- requests come and go --------------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Never raises for a request that must not run: it is marked, and ended with an error in the next step."""
        if request.request_id in self.requests:
            self.counters["duplicate_requests"] += 1
            logger.error("blockwarden: a second request with the id %s was dropped", request.request_id)
            return
        self._take_policy()
        self._enrolment.enrol(request, self._applied)
        if request.refused is None:
            self.fairness.join(request.flow)
        else:
            request.flow = None
            request.resumable = False
        super().add_request(request)
        if request.refused is not None:
            self._refuse(request, request.refused)

    def _refuse(self, request: Request, code: str) -> None:
        """The request gets no further step and is ended with an error when the next output is processed."""
        request.refused = code
        request.next_decode_eligible_step = NEVER
        self.encoder_cache_mismatch_reqs.add(request.request_id)  # vLLM's own set of requests to end with an error
        self.counters[f"refused_{code}"] += 1
        owner = self.counters if request.trust_domain is None else request.trust_domain.tenant.counters
        owner[f"ended.{code}"] += 1
        logger.warning("blockwarden: request %s is ended: %s", request.request_id, code)

    def _free_blocks(self, request: Request) -> None:
        super()._free_blocks(request)
        if (domain := request.trust_domain) is not None:
            if request.refused == "guard" or self.pool.foreign:
                self._repair(domain)
            self.ledger.leave(domain)
        if request.flow is not None:
            self.fairness.leave(request.flow)

    def _repair(self, domain: Any) -> None:
        """Blocks that a corrupted table lost would stay owned, and never be scrubbed."""
        held = {block.block_id for _, blocks in self.deferred_frees for block in blocks}
        for table in self._tables():
            held.update(block.block_id for blocks in table.values() for block in blocks)
        self.counters["blocks_repaired"] += self.pool.repair(domain, held)

    def _tables(self) -> list[dict[str, list[Any]]]:
        return [single.req_to_blocks for single in self.kv_cache_manager.coordinator.single_type_managers]

    def has_requests(self) -> bool:
        """Also true while something is to be scrubbed, or a new policy to be applied."""
        return super().has_requests() or bool(self.ledger.dirty) or self.policy_file.in_force is not self._applied

    # ---- one step --------------------------------------------------------------------------------------------------------

    def schedule(self, throttle_prefills: bool = False) -> Any:
        self.ledger.latency.look(self.clock())
        self._take_policy()
        self._begin_step()
        output = super().schedule(throttle_prefills)
        self._attach_order(output)
        self._steps.append((output, self.fairness.end(), self.clock()))
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        self._charge(scheduler_output)
        return super().update_from_output(scheduler_output, model_runner_output)

    def _charge(self, output: Any) -> None:
        """A step lasts from its predecessor's end, or from when it was scheduled, to its own end."""
        now = self.clock()
        while self._steps:
            step, usage, scheduled = self._steps.popleft()
            if step is output:
                self.fairness.charge(usage, now - max(scheduled, self._last_end))
                break
        self._last_end = now

    def _begin_step(self) -> None:
        self.fairness.begin(self.current_step + 1)
        self.waiting.begin_step()
        if self._stalled:
            self._yield_stalled()
        if len(self.waiting):
            self.fairness.count_running(request.flow for request in self.running)
        if self._inflight_prefills or len(self.waiting):
            self._divide_step()

    def _divide_step(self) -> None:
        demand: Counter[Any] = Counter()
        for request in self._inflight_prefills:
            if request.status is RUNNING and request.refused is None:
                demand[request.flow] += request.num_tokens - request.num_computed_tokens
        heads = list(self.waiting.heads())
        if len(demand.keys() | {flow for flow, _, _ in heads}) < 2:
            return
        for flow, request, count in heads:  # a tenant that cannot start anything now takes no share of this step for it
            may_wait = request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
            if may_wait and (obstacle := self._obstacle(request)) is not None:
                self._pass_over(request, obstacle)
            else:
                demand[flow] += count * request.num_tokens
        self.fairness.divide(demand, len(self.running))

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        if not super()._handle_blocked_waiting_request(request):
            return False
        if (obstacle := self._obstacle(request)) is None:
            self.fairness.start(request.flow)
            self._prepare_follower(request)
            return True
        self._pass_over(request, obstacle)
        return False

    def _obstacle(self, request: Request) -> str | None:
        """What keeps the first waiting request of a tenant from starting in this step; None if nothing does."""
        if request.refused is not None:
            return "ending"
        free_slots = self.max_num_active_reqs - len(self.running) - self.num_waiting_for_streaming_input
        if not self.fairness.may_start(request.flow, free_slots):
            return "share"
        need = self._fit.waiting_shortage(request)
        if need:
            self.pool.make_room(request.trust_domain, need)
            self.counters["waits_for_blocks"] += 1
            return "blocks"
        return None

    def _pass_over(self, request: Request, obstacle: str) -> None:
        """The queue goes on behind a request that cannot start."""
        self.waiting.deny(request.flow)
        request.trust_domain.tenant.counters[f"passed_over.{obstacle}"] += 1

    def _prepare_follower(self, request: Request) -> None:
        """A tenant whose cache is full of other trust domains' blocks waits for a scrub before each start: order it one ahead."""
        if (follower := self.waiting.follower(request.flow)) is not None:
            count = self._fit.blocks_for(request.num_tokens) + self._fit.blocks_for(follower.num_tokens)
            self.pool.make_room(follower.trust_domain, count)

    def _reserve_prefill_lookahead(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        """vLLM asks this for each request right before it takes blocks; 0 makes it go on to the next running request.

        Written out flat: it is most of what tenants cost in a step.
        """
        flow, fairness, tokens = request.flow, self.fairness, num_new_tokens
        if request.status is not RUNNING or request.is_prefill_chunk:
            tokens = fairness.grant_prompt(flow, tokens, self._whole_prompts)
        elif flow.step == fairness.step and flow.used + tokens <= flow.cap:
            flow.used += tokens
            flow.served += tokens * flow.price
        else:
            tokens = fairness.grant_answer(flow, tokens)
        if self.num_prefill_lookahead > 1:
            tokens = super()._reserve_prefill_lookahead(request, num_computed_tokens, tokens)
        if request.status is not RUNNING:
            return tokens
        if self._table is None:
            need = self._fit.running_need(request, tokens) if tokens else 0
        else:
            end = num_computed_tokens + tokens + self.num_lookahead_tokens
            need = -(-end // self.block_size) - len(self._table[request.request_id])
            if need <= 0:
                self.pool.settled = tokens > 0
                return tokens
        if tokens and not self._make_room(request, need):
            fairness.give_back(flow, tokens)
            return 0
        return tokens

    # ---- report ----------------------------------------------------------------------------------------------------------

    def report(self) -> EngineReport:
        """What this engine holds, for `GET /status` on the internal port. Runs on the engine's own thread."""
        waiting = (*self.waiting, *self.kv_holding_waiting)
        return render_report(
            self._identity,
            self._applied.version,
            self.ledger,
            render_tenants(self.ledger, self.running, waiting),
            {**self.counters, "foreign_hits_refused": self.pool.foreign_hits},
            self._block_bytes,
        ).model_copy(update={"reload_error": self.policy_file.error, "reload_errors": dict(self.policy_file.errors)})


class TenantScheduler(TenantScheduling, Scheduler):
    """One step at a time."""


class TenantAsyncScheduler(TenantScheduling, AsyncScheduler):
    """The next step is scheduled while one runs."""


SCHEDULER_CLASSES: Final = (TenantScheduler, TenantAsyncScheduler)


def make_scheduler(vllm_config: Any, **kwargs: Any) -> TenantScheduling:
    """What `--scheduler-cls` names: vLLM calls it with what it would give its own class."""
    cls = TenantAsyncScheduler if vllm_config.scheduler_config.async_scheduling else TenantScheduler
    return cls(vllm_config, **kwargs)
