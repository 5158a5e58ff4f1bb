"""The mounted policy changes under a running scheduler: quotas, tenants, salt generations."""

from __future__ import annotations

import queue
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from blockwarden_core import layout
from blockwarden_core.errors import DocumentError
from blockwarden_engine.aggregate import AckAggregator
from blockwarden_engine.errors import PolicyTooLarge

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_a_tenant_that_leaves_the_policy_is_ended_and_scrubbed(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 20), share("b", 20), blocks=64)
    leaver = rig.add(rig.mounts.token("a"), 60, tokens=100)
    waiting = rig.add(rig.mounts.token("a"), 300, tokens=8)
    stayer = rig.add(rig.mounts.token("b"), 60, tokens=30)
    for _ in range(5):
        rig.step()
    rig.share(share("b", 20))
    rig.run()
    assert rig.finished == {leaver: "error", waiting: "error", stayer: "length"}
    assert len(rig.outputs[stayer]) == 30
    assert rig.tenant("a") is None
    late = rig.add(rig.mounts.token("a"), 60)
    rig.run()
    assert rig.finished[late] == "error"


def test_a_tenant_that_leaves_with_grace_finishes_and_gives_its_quota_back(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 20), share("b", 20, 60), blocks=64)
    before = rig.add(rig.mounts.token("a"), 100, tokens=2)
    rig.run()
    assert rig.tenant("a").cached_blocks > 0
    leaver = rig.add(rig.mounts.token("a"), 60, tokens=60)
    rig.step()
    rig.share(share("b", 20, 60), grace=600)
    late = rig.add(rig.mounts.token("a"), 60)
    rig.step()
    leaving = rig.tenant("a")
    assert (leaving.state, leaving.cached_blocks, leaving.guaranteed_blocks) == ("Draining", 0, 20)
    assert leaving.stale_requests == 1, "a rotation waits for it"
    rig.run()
    assert rig.finished == {before: "length", leaver: "length", late: "error"}
    assert len(rig.outputs[leaver]) == 60
    assert rig.tenant("a") is None
    assert rig.scheduler.report().pool.owned == rig.tenant("b").owned_blocks == 0


def test_the_grace_period_ends(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 20), share("b", 20), blocks=64)
    leaver = rig.add(rig.mounts.token("a"), 60, tokens=200)
    stayer = rig.add(rig.mounts.token("b"), 60, tokens=40)
    rig.step()
    rig.share(share("b", 20), grace=30)
    for _ in range(5):
        rig.step()
    assert leaver not in rig.finished
    rig.now += 31
    rig.run()
    assert rig.finished == {leaver: "error", stayer: "length"}
    assert rig.scheduler.counters["refused_tenant_deregistered"] == 1
    assert rig.tenant("a") is None


def test_a_tenant_that_comes_back_within_its_grace_goes_on_under_one_cap(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 40, max_sequences=2), share("b", 10), blocks=64)
    names = [rig.add(rig.mounts.token("a", f"u{at}"), 20, tokens=40) for at in range(6)]
    rig.step()
    rig.share(share("b", 10), grace=600)
    rig.step()
    rig.share(share("a", 40, max_sequences=2), share("b", 10), grace=600)
    names += [rig.add(rig.mounts.token("a", f"v{at}"), 20, tokens=40) for at in range(6)]
    while rig.scheduler.has_requests():
        rig.step()
        assert len(rig.scheduler.running) <= 2
    assert {rig.finished[name] for name in names} == {"length"}


def test_a_newly_guaranteed_block_comes_back_from_a_borrower_that_runs(make_rig: Any, share: Any) -> None:
    """What a borrowed is promised to b while a's requests use it: they give way as they need their next block."""
    rig = make_rig(share("a", 10, 60), share("b", 4), blocks=64)
    long = [rig.add(rig.mounts.token("a", f"u{at}"), 200, tokens=60) for at in range(3)]
    for _ in range(8):
        rig.step()
    assert rig.tenant("a").owned_blocks > 36, "it borrows"
    rig.share(share("a", 20, 60), share("b", 40))
    name = rig.add(rig.mounts.token("b"), 480, tokens=4)
    assert rig.run_until(lambda: name in rig.first_step, limit=60) <= 2 * 16 + 8, "two blocks' tokens, and the prompt's own steps"
    assert rig.tenant("a").counters["preemptions"] > 0
    rig.run()
    assert {rig.finished[one] for one in (*long, name)} == {"length"}, "whoever gave way went on later"
    assert rig.scheduler.counters["preemption_vetoes"] == 0


def test_an_idle_engine_applies_a_policy_and_scrubs(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 20), share("b", 20), blocks=64)
    rig.add(rig.mounts.token("a"), 60)
    rig.run()
    assert not rig.scheduler.has_requests()
    woken = threading.Event()
    rig.scheduler._wake = woken.set
    rig.mounts.share(share("b", 20))
    assert woken.wait(30)
    assert rig.scheduler.has_requests()
    rig.run()
    assert rig.scheduler.report().pool.owned == 0
    assert rig.scheduler.report().policy_version == 2


def test_a_request_of_a_tenant_that_came_with_the_newest_policy_runs(make_rig: Any, share: Any) -> None:
    """The policy is in force before any step has applied it: the request that arrives in between finds its tenant."""
    rig = make_rig(share("a", 20), blocks=64)
    rig.share(share("a", 20), share("new", 20))
    name = rig.add(rig.mounts.token("new"), 60)
    rig.run()
    assert rig.finished[name] == "length"


def test_a_lower_limit_takes_cache_at_once_and_running_requests_as_they_end(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 30), share("b", 4), blocks=64)
    rig.add(rig.mounts.token("a"), 200, tokens=2)
    rig.run()
    running = rig.add(rig.mounts.token("a", "u"), 100, tokens=20)
    rig.step()
    rig.share(share("a", 10), share("b", 40))
    rig.step()
    assert rig.tenant("a").owned_blocks <= 10
    rig.run()
    assert rig.finished[running] == "length"
    other = rig.add(rig.mounts.token("b"), 400, tokens=4)
    rig.run()
    assert rig.finished[other] == "length"


def test_a_limit_below_what_a_request_needs_ends_it(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 30), share("b", 4), blocks=64)
    big = rig.add(rig.mounts.token("a"), 200, tokens=100)
    for _ in range(4):
        rig.step()
    rig.share(share("a", 8), share("b", 4))
    rig.run()
    assert rig.finished[big] == "error"


@pytest.mark.parametrize("broken", ["text", "too large", "older"])
def test_a_broken_policy_keeps_the_last_good_one(make_rig: Any, share: Any, broken: str) -> None:
    rig = make_rig(share("a", 20), blocks=64)
    if broken == "text":
        (rig.mounts.root / layout.ENGINE_POLICY).write_text("{")
        rig.scheduler.policy_file.poll()
    elif broken == "too large":
        rig.share(share("a", 60), share("b", 60))
    else:
        rig.mounts.version = 0
        rig.mounts.share(share("a", 1))
        rig.scheduler.policy_file.poll()
    name = rig.add(rig.mounts.token("a"), 100)
    rig.run()
    report = rig.scheduler.report()
    assert rig.finished[name] == "length"
    assert report.policy_version == 1
    assert report.reload_error
    assert rig.tenant("a").limit_blocks == 20


def test_an_engine_does_not_start_without_a_policy_that_fits(make_rig: Any, share: Any) -> None:
    with pytest.raises(PolicyTooLarge):
        make_rig(share("a", 100), blocks=64)


def test_an_engine_does_not_start_without_a_policy(make_rig: Any, share: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(layout.ROOT_ENV, "/nonexistent")
    with pytest.raises(DocumentError):
        make_rig(share("a", 10), blocks=64)


def test_a_rotation_drains_and_then_leaves_nothing_of_the_old_generation(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 30), share("b", 20), blocks=64)
    old, new, other = rig.mounts.token("a"), rig.mounts.token("a", generation=2), rig.mounts.token("b")
    for salt in (old, other):
        rig.add(salt, 100)
        rig.run()
    slow = rig.add(old, 60, tokens=60)
    rig.step()
    rig.share(share("a", 30, generation=2), share("b", 20))
    rig.step()
    late = rig.add(old, 60)  # an old token is still good while its generation drains
    fresh = rig.add(new, 100)
    rig.run_until(lambda: late in rig.finished and fresh in rig.finished)
    assert rig.finished[late] == rig.finished[fresh] == "length"
    assert rig.cached[fresh] == 0
    rig.share(share("a", 30, generation=2, floor=2), share("b", 20))
    rig.run()
    assert rig.finished[slow] == "error"
    assert rig.tenant("a").stale_blocks == rig.tenant("a").stale_requests == 0
    retired, warm, undisturbed = rig.add(old, 100), rig.add(new, 100), rig.add(other, 100)
    rig.run()
    assert rig.finished[retired] == "error"
    assert rig.cached[warm] == rig.cached[undisturbed] == 96


def test_stale_blocks_count_until_their_scrub_is_acknowledged(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 30), blocks=64)
    rig.add(rig.mounts.token("a"), 100)
    rig.run()
    rig.share(share("a", 30, generation=2, floor=2))
    output = rig.scheduler.schedule()
    assert rig.tenant("a").stale_blocks == rig.scheduler.report().pool.scrubbing == 6
    rig._land(output, rig.worker.run(output, rig._salt))
    assert rig.tenant("a").stale_blocks == 0


def test_a_report_holds_no_salt_and_no_token(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 30), blocks=64)
    token = rig.mounts.token("a")
    rig.add(token, 100)
    rig.step()
    text = rig.scheduler.report().text()
    assert '"podUid":"pod"' in text
    assert '"running":1' in text
    assert token not in text
    assert token.split(".")[3] not in text


def test_a_new_policy_wakes_the_engine_that_it_was_attached_to(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 20), blocks=64)
    inbox: queue.Queue[Any] = queue.Queue()
    rig.scheduler.attach_engine(SimpleNamespace(input_queue=inbox))
    rig.mounts.share(share("a", 10))
    kind, content = inbox.get(timeout=30)
    assert kind.name == "WAKEUP"
    assert content is None


def test_every_rank_is_asked_when_there_are_several(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 20), blocks=64)
    connector = object()
    executor = SimpleNamespace(kv_output_aggregator=connector)
    rig.scheduler.attach_engine(SimpleNamespace(model_executor=executor))
    assert executor.kv_output_aggregator is connector, "one rank needs no aggregator"
    rig.scheduler._ranks = 2
    rig.scheduler.attach_engine(SimpleNamespace(model_executor=executor))
    assert isinstance(executor.kv_output_aggregator, AckAggregator)
    assert executor.kv_output_aggregator._inner is connector
