"""Requests through the real schedulers: they finish, share within a trust domain only, and leave nothing behind."""

from __future__ import annotations

import random
from typing import Any

import pytest

from blockwarden_engine.admission import carry_token
from blockwarden_engine.errors import MismatchedAck, MissingAck
from blockwarden_engine.protocol import ATTRIBUTE

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_a_trust_domain_hits_its_own_blocks_and_no_other(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", "50%"), share("b", "50%"))
    token = rig.mounts.token
    salts = {"cold": token("a", "alice"), "warm": token("a", "alice"), "colleague": token("a", "bob"), "stranger": token("b")}
    for name, salt in salts.items():
        rig.add(salt, 100, name=name)
        rig.run()
    assert rig.cached == {"cold": 0, "warm": 96, "colleague": 0, "stranger": 0}
    assert all(len(tokens) == 8 for tokens in rig.outputs.values())


def test_a_mixed_load_with_aborts_leaks_nothing_and_ends_clean(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 20), share("b", 10, 30), share("c", 10), blocks=64)
    dice = random.Random(7)
    live: list[str] = []
    for _ in range(400):
        if dice.random() < 0.4 and len(live) < 40:
            tenant = dice.choice("abc")
            salt = rig.mounts.token(tenant, dice.choice(["", "u", "v"]))
            live.append(rig.add(salt, dice.randint(1, 140), tokens=dice.randint(1, 12)))
        if live and dice.random() < 0.15:
            rig.abort(live.pop(dice.randrange(len(live))))
        rig.step()
    rig.run()
    pool = rig.scheduler.report().pool
    assert pool.owned == rig.scheduler.ledger.cached
    assert pool.dirty == pool.scrubbing == 0
    assert set(rig.finished.values()) == {"length"}
    assert rig.scheduler.counters["guard_violations"] == rig.scheduler.counters["preemption_vetoes"] == 0
    assert rig.scheduler.counters["blocks_scrubbed"] > 100


def test_a_tenant_short_of_blocks_preempts_itself_only(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 10), share("b", 20), blocks=32, slots=8)
    ours = [rig.add(rig.mounts.token("a", user), 40 + at, tokens=60) for at, user in enumerate("xyz")]
    theirs = [rig.add(rig.mounts.token("b"), 70 + at, tokens=40) for at in range(2)]
    rig.run()
    assert all(rig.finished[name] == "length" for name in ours + theirs)
    assert [len(rig.outputs[name]) for name in ours + theirs] == [60, 60, 60, 40, 40]
    assert rig.scheduler.counters["preempted_by_own_tenant"] > 0
    assert all(rig.requests[name].num_preemptions == 0 for name in theirs)


def test_scopes_of_one_tenant_take_turns_through_clean(make_rig: Any, share: Any) -> None:
    """A tenant at its limit whose cache is another user's: it is evicted and scrubbed first, and no other tenant notices."""
    rig = make_rig(share("a", 8), share("b", 40), blocks=64)
    kept = rig.add(rig.mounts.token("b"), 200)
    rig.run()
    for at, user in enumerate("uvwxyz"):
        rig.add(rig.mounts.token("a", user), 100 + at, tokens=4)
        rig.run()
        assert rig.tenant("a").owned_blocks <= 8
    assert set(rig.finished.values()) == {"length"}
    again = rig.add(rig.mounts.token("b"), 200)
    rig.run()
    assert rig.cached[again] == 192
    assert rig.outputs[kept]


def test_a_scope_recycles_its_own_blocks_without_waiting(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 8), blocks=32)
    steps = []
    for at in range(5):
        rig.add(rig.mounts.token("a"), 100 + at, tokens=1)
        steps.append(rig.run_until(lambda at=at: len(rig.finished) > at))
    assert rig.scheduler.counters["blocks_zeroed_in_place"] > 0
    assert max(steps) <= steps[0] + 1


def test_borrowed_blocks_come_back_when_they_are_needed(make_rig: Any, share: Any) -> None:
    """Both borrow what nobody is guaranteed: the cache of one gives way to the other's request, and no guarantee is touched."""
    rig = make_rig(share("a", 4, 40), share("b", 4, 40), share("c", 16), blocks=64)
    for at in range(4):
        rig.add(rig.mounts.token("a"), 140 + at, tokens=2)
        rig.run()
    assert rig.tenant("a").owned_blocks > 30
    rig.add(rig.mounts.token("c"), 200, tokens=2, name="guaranteed")
    assert rig.run_until(lambda: "guaranteed" in rig.finished) <= 8
    rig.add(rig.mounts.token("b"), 400, tokens=2, name="borrower")
    rig.run()
    assert rig.finished["borrower"] == "length"
    assert rig.tenant("c").owned_blocks >= 12


def test_two_borrowers_that_starve_each_other_both_finish(make_rig: Any, share: Any) -> None:
    """Each holds half of what nobody is guaranteed and needs more: the later one gives its part back, and comes again."""
    rig = make_rig(share("a", 0, 60), share("b", 0, 60), blocks=42)
    names = [rig.add(rig.mounts.token(tenant), 250, tokens=200) for tenant in "ab"]
    rig.run()
    assert [len(rig.outputs[name]) for name in names] == [200, 200]
    assert rig.scheduler.counters["preempted_by_own_tenant"] >= 1
    assert rig.scheduler.counters["preemption_vetoes"] == 0


@pytest.mark.parametrize(
    ("salt", "code"),
    [
        (None, "salt_missing"),
        ("v1.a.1.x.y", "salt_malformed"),
        ("forged", "salt_forged"),
        ("stranger", "tenant_unknown"),
        ("retired", "salt_retired"),
        ("huge", "request_too_large"),
    ],
)
def test_what_must_not_run_ends_with_an_error_and_the_engine_goes_on(make_rig: Any, share: Any, salt: str, code: str) -> None:
    rig = make_rig(share("a", 8, generation=3, floor=2), blocks=64)
    good = rig.mounts.token("a", generation=2)
    salts = {
        "forged": good[:-4] + ("AAAA" if good[-4:] != "AAAA" else "BBBB"),
        "stranger": rig.mounts.token("z"),
        "retired": rig.mounts.token("a", generation=1),
        "huge": good,
    }
    bad = rig.add(salts.get(salt, salt), 200 if salt == "huge" else 40)
    fine = rig.add(good, 40)
    rig.run()
    assert rig.finished == {bad: "error", fine: "length"}
    assert rig.outputs[bad] == []
    assert rig.scheduler.counters[f"refused_{code}"] == 1
    assert rig.scheduler.report().pool.owned == 0, "nothing stays cached of a generation that is draining"


def test_a_request_hashed_under_another_salt_than_its_tokens_is_refused(make_rig: Any, share: Any) -> None:
    """Else whoever reaches the engine core with a token of their own would look into the cache of any salt that they name."""
    rig = make_rig(share("a", 20), share("b", 20))
    token, add_request = rig.mounts.token, rig.scheduler.add_request
    rig.add(token("a"), 100, name="owner")
    rig.run()

    def forged(request: Any) -> None:
        carry_token(request, token("b"))
        add_request(request)

    rig.scheduler.add_request = forged
    name = rig.add(token("a"), 100, name="intruder")
    rig.run()
    assert rig.finished[name] == "error"
    assert rig.scheduler.counters["refused_salt_forged"] == 1


def test_a_request_is_as_long_as_its_tenant_has_room(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 8), blocks=64)
    name = rig.add(rig.mounts.token("a"), 100, tokens=400)
    rig.run()
    assert rig.finished[name] == "length"
    assert len(rig.outputs[name]) == 8 * 16 - 100


def test_a_second_request_with_one_id_does_not_end_the_engine(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 16))
    name = rig.add(rig.mounts.token("a"), 40, name="same")
    rig.scheduler.add_request(rig.requests[name])
    rig.run()
    assert rig.finished == {"same": "length"}
    assert rig.scheduler.counters["duplicate_requests"] == 1


def test_the_cache_resets_under_running_requests(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 30), blocks=64)
    names = [rig.add(rig.mounts.token("a", user), 60, tokens=20) for user in "xy"]
    for _ in range(5):
        rig.step()
    assert rig.scheduler.reset_prefix_cache(reset_running_requests=True)
    rig.run()
    assert {rig.finished[name] for name in names} == {"length"}
    late = rig.add(rig.mounts.token("a", "z"), 60)
    rig.run()
    assert rig.cached[late] == 0


def test_a_step_without_an_acknowledgement_ends_the_engine(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 16))
    rig.worker.acknowledges = False
    rig.add(rig.mounts.token("a"), 40)
    with pytest.raises(MissingAck):
        rig.run()


@pytest.mark.parametrize(("field", "wrong"), [("epoch", 99), ("scrubbed", 99), ("ranks", 2)])
def test_a_wrong_acknowledgement_ends_the_engine(make_rig: Any, share: Any, field: str, wrong: int) -> None:
    rig = make_rig(share("a", 16))
    answer = rig.worker._answer

    def lie(output: Any, order: Any) -> Any:
        made = answer(output, order)
        setattr(getattr(made, ATTRIBUTE), field, wrong)
        return made

    rig.worker._answer = lie
    rig.add(rig.mounts.token("a"), 40, tokens=20)
    with pytest.raises(MismatchedAck):
        rig.run()
