"""How one step's tokens and the running slots are divided between tenants. Pure.

What tenants compete for is the engine's time. Each has a count of the seconds that it was served, divided by its weight (its
guarantee): whoever was served less is behind. The time of a step goes to those in it by their tokens, once it is known; until
then a token counts what the cheapest ones cost lately. Each step:

- Where one tenant alone has prompts to process, it may use the whole step (up to its own cap).
- Where several have, each gets at least its share of the step, in proportion to the weights; what a tenant cannot use of its
  share goes to the others within the step.
- A tenant that is far ahead of the one furthest behind processes no prompt in that step, though its answers go on: the time of a
  step is the sum of what is in it, so a quiet tenant's short prompt would otherwise wait for the flood that shares its step.

Time alone counts for nobody. A tenant that comes back after it had no request starts at most WINDOW behind those that are there,
so nobody saves up idle time to shut others out; and one that finds nobody starts level with whoever was served last, so nobody
is held back for what was served while nobody else asked (the virtual time of start-time fair queueing). One running slot is kept
free for each tenant that has none, up to a quarter of all slots.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from blockwarden_core.policy import EnginePolicy, blocks_of

from .quotas import Quota

UNLIMITED = 1 << 60
WINDOW = 2.0
"""Seconds that idle time may leave a tenant behind: its burst before others' prompts share its steps, and their wait for it."""
FAR_AHEAD = WINDOW / 4
"""Seconds ahead from which a tenant's prompts wait for those of one that is behind."""


@dataclass(slots=True, eq=False)
class Flow:
    """One tenant's part in the scheduling of steps.

    Attributes:
        weight: its part of all weights, as a fraction of the average tenant's.
        cap: tokens that it may have in one step.
        max_sequences: requests that it may have running.
        served: seconds served so far, divided by weight; raised after idle time.
        live: its requests in the engine.
        price: what one token of the present step adds to `served` until the step's time is known.
        step: the step for which the following hold.
        used: tokens in this step.
        prompt_limit: tokens in this step up to which it may process prompts.
        running: running requests, counted while requests wait.
    """

    name: str
    weight: float = 1.0
    cap: int = UNLIMITED
    max_sequences: int = UNLIMITED
    served: float = 0.0
    live: int = 0
    price: float = 0.0
    step: int = -1
    used: int = 0
    prompt_limit: int = UNLIMITED
    running: int = 0


Usage = tuple[tuple[Flow, int, float], ...]
"""What one step holds of each tenant: (flow, tokens, price at which they were counted)."""


class Fairness:
    """Divides steps of at most `tokens` tokens and `slots` running requests."""

    def __init__(self, tokens: int, slots: int) -> None:
        self._tokens, self._slots = tokens, slots
        self._flows: dict[str, Flow] = {}
        self._registered = 0
        self._active = 0
        self._virtual = 0.0
        self._token_seconds = 0.0
        self._entered: list[Flow] = []
        self.step = 0

    def flow(self, tenant: str) -> Flow:
        """The flow of a tenant, the same object as long as the tenant is registered."""
        return self._flows.setdefault(tenant, Flow(tenant))

    def apply(self, policy: EnginePolicy, quotas: Mapping[str, Quota], draining: Collection[str] = ()) -> None:
        """Takes a policy's shares into force. Tenants in `draining` keep theirs: one that comes back must not count twice."""
        mean = max(1.0, sum(quota.guaranteed for quota in quotas.values()) / max(1, len(quotas)))
        for share in policy.tenants:
            flow = self.flow(share.name)
            flow.weight = max(1.0, quotas[share.name].guaranteed) / mean
            flow.max_sequences = share.max_sequences or UNLIMITED
            part = share.max_batched_tokens_share
            flow.cap = UNLIMITED if part is None else max(1, blocks_of(part, self._tokens))
        for name in self._flows.keys() - quotas.keys() - set(draining):
            del self._flows[name]
        self._registered = len(self._flows)

    # ---- requests come and go --------------------------------------------------------------------------------------------

    def join(self, flow: Flow) -> None:
        """One more request of the tenant is in the engine."""
        if not flow.live:
            others = [other.served for other in self._flows.values() if other.live and other is not flow]
            self._virtual = max(self._virtual, min(others, default=0.0))
            flow.served = max(flow.served, self._virtual - (WINDOW if others else 0.0))
        flow.live += 1

    def leave(self, flow: Flow) -> None:
        """One of the tenant's requests has left the engine."""
        flow.live -= 1
        if not flow.live and not any(other.live for other in self._flows.values()):
            self._virtual = max(self._virtual, flow.served)

    # ---- one step --------------------------------------------------------------------------------------------------------

    def begin(self, step: int) -> None:
        """Starts a step."""
        self.step = step
        self._entered.clear()

    def end(self) -> Usage:
        """What was granted in this step."""
        return tuple((flow, flow.used, flow.price) for flow in self._entered if flow.used)

    def charge(self, usage: Usage, seconds: float) -> None:
        """The step took so long: its tenants are charged that in place of what was counted before."""
        if not (total := sum(tokens for _, tokens, _ in usage)):
            return
        each = seconds / total
        for flow, tokens, price in usage:
            flow.served += tokens * (each / flow.weight - price)
        # A token of a full step: one of a step with few tokens costs many times as much, and is no guess for a prompt's.
        self._token_seconds = min(each, 1.05 * self._token_seconds or each)

    def count_running(self, flows: Iterable[Flow]) -> None:
        """Counts the running requests, given as one flow per request."""
        self._active = 0
        for flow in flows:
            self._enter(flow)
            self._active += not flow.running
            flow.running += 1

    def divide(self, demand: Mapping[Flow, int], decodes: int) -> None:
        """Sets how far each tenant with prompts to process may go in this step.

        Args:
            demand: prompt tokens waiting, by flow.
            decodes: running requests, each of which takes about one token.
        """
        for flow in demand:
            self._enter(flow)
        if len(demand) < 2:
            return
        ahead = max(flow.served for flow in demand)
        for flow in demand:
            flow.served = max(flow.served, ahead - WINDOW)
        behind = min(flow.served for flow in demand)
        served = {flow: left for flow, left in demand.items() if flow.served <= behind + FAR_AHEAD}
        tokens, weights = max(1, self._tokens - decodes), sum(flow.weight for flow in served)
        wanted = {flow: min(left, math.ceil(tokens * flow.weight / weights)) for flow, left in served.items()}
        reserved = sum(wanted.values())
        for flow in demand:
            flow.prompt_limit = max(1, tokens - reserved + wanted[flow]) if flow in wanted else 0

    def may_start(self, flow: Flow, free_slots: int) -> bool:
        """Whether one more request of the tenant may start running in this step."""
        self._enter(flow)
        if flow.running >= flow.max_sequences or flow.used >= min(flow.prompt_limit, flow.cap):
            return False
        kept = min(self._registered - self._active, self._slots // 4)
        return not flow.running or free_slots > kept

    def start(self, flow: Flow) -> None:
        """One more request of the tenant runs."""
        self._active += not flow.running
        flow.running += 1

    def grant_prompt(self, flow: Flow, tokens: int, whole: bool) -> int:
        """How many of `tokens` prompt tokens the tenant may have now, charged to it; all where a prompt is kept `whole`."""
        if flow.step != self.step:
            self._enter(flow)
        left = min(flow.prompt_limit, flow.cap) - flow.used
        if tokens > left and not whole:
            tokens = max(0, left)
        flow.used += tokens
        flow.served += tokens * flow.price
        return tokens

    def grant_answer(self, flow: Flow, tokens: int) -> int:
        """The same for the tokens of an answer: all or none. Runs once per running request."""
        if flow.step != self.step:
            self._enter(flow)
        if flow.used + tokens > flow.cap:
            return 0
        flow.used += tokens
        flow.served += tokens * flow.price
        return tokens

    def give_back(self, flow: Flow, tokens: int) -> None:
        """Tokens that were granted and could not be scheduled."""
        flow.used -= tokens
        flow.served -= tokens * flow.price

    def _enter(self, flow: Flow) -> None:
        if flow.step != self.step:
            flow.step, flow.used, flow.running, flow.prompt_limit = self.step, 0, 0, UNLIMITED
            flow.price = self._token_seconds / flow.weight
            self._entered.append(flow)
