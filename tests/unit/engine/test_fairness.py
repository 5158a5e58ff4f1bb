"""How a step is divided, and in which order tenants are offered."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from blockwarden_core.policy import EnginePolicy, TenantShare
from blockwarden_engine.fairness import FAR_AHEAD, WINDOW, Fairness, Flow
from blockwarden_engine.quotas import plan_quotas
from blockwarden_engine.waiting import TenantQueue

TOKENS, SLOTS = 100, 16


def fairness(**shares: TenantShare) -> Fairness:
    made = Fairness(TOKENS, SLOTS)
    policy = EnginePolicy(policy_uid="u", version=1, tenants=tuple(shares.values()))
    made.apply(policy, plan_quotas(policy, 100))
    made.begin(1)
    return made


def share(name: str, guaranteed: int = 25, **fields: int | str) -> TenantShare:
    return TenantShare.model_validate(
        {"name": name, "guaranteed": guaranteed, "limit": guaranteed, "generation": 1, "floor": 1} | fields
    )


def spend(fair: Fairness, seconds: float = 0.1) -> None:
    """The step took so long."""
    fair.charge(fair.end(), seconds)


def test_alone_a_tenant_has_the_whole_step() -> None:
    fair = fairness(a=share("a"), b=share("b"))
    fair.divide({fair.flow("a"): 500}, 0)
    assert fair.grant_prompt(fair.flow("a"), 100, False) == 100


def test_two_that_want_all_get_their_shares() -> None:
    fair = fairness(a=share("a", 75), b=share("b", 25))
    a, b = fair.flow("a"), fair.flow("b")
    fair.divide({a: 500, b: 500}, 0)
    assert fair.grant_prompt(a, 500, False) == 75
    assert fair.grant_prompt(b, 500, False) == 25


def test_what_one_does_not_need_is_lent_within_the_step() -> None:
    fair = fairness(a=share("a", 50), b=share("b", 50))
    a, b = fair.flow("a"), fair.flow("b")
    fair.divide({a: 500, b: 10}, 0)
    assert fair.grant_prompt(a, 500, False) == 90
    assert fair.grant_prompt(b, 10, False) == 10


def test_who_is_far_ahead_waits_while_somebody_behind_is_served() -> None:
    fair = fairness(a=share("a", 50), b=share("b", 50))
    a, b = fair.flow("a"), fair.flow("b")
    for step in range(2, 12):
        fair.begin(step)
        fair.divide({a: 500}, 0)
        fair.grant_prompt(a, 100, False)
        spend(fair)
    fair.begin(12)
    fair.divide({a: 500, b: 40}, 0)
    assert fair.grant_prompt(a, 100, False) == 0
    assert not fair.may_start(a, SLOTS)
    assert fair.grant_answer(a, 1) == 1, "its answers go on"
    assert fair.grant_prompt(b, 40, False) == 40


def solo(fair: Fairness, flow: Flow, steps: range) -> None:
    """The tenant is served whole steps, and nobody else asks."""
    for step in steps:
        fair.begin(step)
        fair.join(flow)
        fair.divide({flow: TOKENS}, 0)
        assert fair.grant_prompt(flow, TOKENS, False) == TOKENS
        spend(fair)
        fair.leave(flow)


def test_what_was_served_while_nobody_else_asked_holds_nobody_back() -> None:
    """The quiet tenant worked alone; then a flood begins, whose answers alone go on, and the quiet one comes back."""
    fair = fairness(a=share("a", 50), b=share("b", 50))
    quiet, flood = fair.flow("a"), fair.flow("b")
    solo(fair, quiet, range(2, 22))
    fair.join(flood)
    fair.begin(22)
    fair.grant_answer(flood, 5)
    spend(fair)
    fair.join(quiet)
    fair.begin(23)
    fair.divide({quiet: 40, flood: 500}, 0)
    assert fair.grant_prompt(quiet, 40, False) == 40


def test_without_virtual_time_the_quiet_tenant_would_be_held_back() -> None:
    fair = fairness(a=share("a", 50), b=share("b", 50))
    quiet, flood = fair.flow("a"), fair.flow("b")
    quiet.served = 2.0
    fair.divide({quiet: 40, flood: 500}, 0)
    assert fair.grant_prompt(quiet, 40, False) == 0


def test_who_comes_back_is_behind_by_the_window_at_most() -> None:
    fair = fairness(a=share("a", 50), b=share("b", 50))
    a, b = fair.flow("a"), fair.flow("b")
    fair.join(a)
    a.served = 1e6
    fair.join(b)
    assert b.served == 1e6 - WINDOW
    fair.join(b)
    fair.leave(b)
    b.served += 0.5
    fair.leave(b)
    fair.join(b)
    assert b.served == 1e6 - WINDOW + 0.5, "what it had is charged to it"


def test_idle_time_is_worth_the_window_at_most() -> None:
    fair = fairness(a=share("a", 50), b=share("b", 50))
    a, b = fair.flow("a"), fair.flow("b")
    a.served = 1e6
    held = 0
    for step in range(2, 100):
        fair.begin(step)
        fair.divide({a: 500, b: 500}, 0)
        held += not fair.grant_prompt(a, 100, False)
        fair.grant_prompt(b, 100, False)
        spend(fair)
    assert 1 <= held <= (WINDOW - FAR_AHEAD) / 0.1 + 1


def test_a_cap_holds_for_prompts_and_answers_together() -> None:
    fair = fairness(a=share("a", max_batched_tokens_share="10%"))
    a = fair.flow("a")
    assert fair.grant_answer(a, 1) == 1
    assert fair.grant_prompt(a, 100, False) == 9
    assert fair.grant_answer(a, 1) == 0
    fair.begin(2)
    assert fair.grant_answer(a, 1) == 1


def test_a_prompt_that_cannot_be_split_goes_whole() -> None:
    fair = fairness(a=share("a", 50), b=share("b", 50))
    fair.divide({fair.flow("a"): 500, fair.flow("b"): 500}, 0)
    assert fair.grant_prompt(fair.flow("a"), 80, True) == 80


def test_what_is_given_back_is_not_charged() -> None:
    fair = fairness(a=share("a"))
    a = fair.flow("a")
    fair.grant_answer(a, 1)
    fair.give_back(a, 1)
    assert (a.used, a.served) == (0, 0.0)
    assert fair.end() == ()


def test_a_steps_time_goes_to_those_in_it_by_tokens_and_weight() -> None:
    fair = fairness(a=share("a", 75), b=share("b", 25))
    a, b = fair.flow("a"), fair.flow("b")
    fair.grant_prompt(a, 60, False)
    fair.grant_answer(b, 20)
    spend(fair, 8.0)
    assert (a.served, b.served) == (pytest.approx(6.0 / 1.5), pytest.approx(2.0 / 0.5))


def test_until_its_time_is_known_a_token_counts_what_the_cheapest_cost_lately() -> None:
    fair = fairness(a=share("a"))
    a = fair.flow("a")
    for step in range(2, 60):
        fair.begin(step)
        fair.grant_prompt(a, 10, False)
        spend(fair, 1.0)
    fair.begin(60)
    before = a.served
    fair.grant_prompt(a, 10, False)
    assert a.served == pytest.approx(before + 1.0, rel=1e-2)
    spend(fair, 3.0)
    assert a.served == pytest.approx(before + 3.0)


def test_a_prompt_is_not_priced_like_an_answers_lone_token() -> None:
    fair = fairness(a=share("a", 50), b=share("b", 50))
    a, b = fair.flow("a"), fair.flow("b")
    fair.grant_prompt(a, 100, False)
    spend(fair, 0.2)
    for step in range(2, 12):
        fair.begin(step)
        fair.grant_answer(b, 1)
        spend(fair, 0.1)
    fair.begin(12)
    before = a.served
    fair.grant_prompt(a, 100, False)
    assert a.served - before < 0.4


def test_what_a_held_tenant_leaves_goes_to_who_is_behind() -> None:
    fair = fairness(a=share("a", 50), b=share("b", 50))
    a, b = fair.flow("a"), fair.flow("b")
    b.served = 1.0
    fair.divide({a: 500, b: 500}, 0)
    assert fair.grant_prompt(a, 500, False) == TOKENS


def test_an_answer_that_takes_an_engine_to_itself_is_charged_for_it() -> None:
    """A flood of answers is few tokens and all of the time: counted in tokens it would seem the quieter one."""
    fair = fairness(a=share("a", 50), b=share("b", 50))
    quiet, flood = fair.flow("a"), fair.flow("b")
    for step in range(2, 22):
        fair.begin(step)
        fair.grant_answer(flood, 3)
        spend(fair)
    fair.begin(22)
    fair.grant_prompt(quiet, 100, False)
    spend(fair, 0.5)
    assert flood.served > quiet.served + FAR_AHEAD


@pytest.mark.parametrize(("free", "starts"), [(16, True), (4, True), (3, False)])
def test_a_slot_is_kept_for_each_tenant_that_has_none(free: int, starts: bool) -> None:
    names = ["a", "b", "c", "d"]
    fair = fairness(**{name: share(name) for name in names})
    fair.count_running([fair.flow("a")] * 12)
    assert fair.may_start(fair.flow("a"), free) is starts
    assert fair.may_start(fair.flow("b"), free), "who has none may always start"


def test_max_sequences_is_a_cap() -> None:
    fair = fairness(a=share("a", max_sequences=2))
    a = fair.flow("a")
    fair.count_running([a])
    assert fair.may_start(a, SLOTS)
    fair.start(a)
    assert not fair.may_start(a, SLOTS)


def test_a_tenant_that_left_has_no_flow_any_more() -> None:
    fair = fairness(a=share("a"), b=share("b"))
    before = fair.flow("a")
    policy = EnginePolicy(policy_uid="u", version=2, tenants=(share("b"),))
    fair.apply(policy, plan_quotas(policy, 100))
    assert fair.flow("b").name == "b"
    assert fair.flow("a") is not before


@dataclass(eq=False)
class Waiting:
    name: str
    flow: Flow | None


@pytest.fixture
def flows() -> tuple[Flow, Flow]:
    return Flow("a"), Flow("b")


def test_the_queue_offers_whoever_was_served_least(flows: tuple[Flow, Flow]) -> None:
    a, b = flows
    queue = TenantQueue()
    for name, flow in (("a1", a), ("a2", a), ("b1", b)):
        queue.add_request(Waiting(name, flow))
    a.served = 5
    assert queue.pop_request().name == "b1"
    assert queue.follower(a) is list(queue)[1]
    assert [queue.pop_request().name, queue.pop_request().name] == ["a1", "a2"]
    assert not queue
    with pytest.raises(IndexError):
        queue.peek_request()


def test_a_denied_tenant_is_not_offered_again_until_the_next_step(flows: tuple[Flow, Flow]) -> None:
    a, b = flows
    queue = TenantQueue()
    first, second, other = Waiting("a1", a), Waiting("a2", a), Waiting("b1", b)
    for request in (first, second, other):
        queue.add_request(request)
    offered = queue.peek_request()
    queue.deny(a)
    skipped = queue.pop_request()
    assert skipped is offered is first, "vLLM pops what it was offered, to skip it"
    assert queue.pop_request() is other
    assert not queue
    assert len(queue) == 1
    queue.prepend_requests([skipped])
    queue.begin_step()
    assert [queue.pop_request(), queue.pop_request()] == [first, second]


def test_requests_without_a_flow_are_counted_and_never_offered(flows: tuple[Flow, Flow]) -> None:
    queue = TenantQueue()
    parked, waiting = Waiting("p", None), Waiting("a", flows[0])
    queue.add_request(parked)
    assert len(queue) == 1
    assert not queue
    queue.add_request(waiting)
    assert set(queue) == {parked, waiting}
    queue.remove_requests([parked, waiting])
    assert len(queue) == 0
    queue.remove_request(parked)
    assert len(queue) == 0
