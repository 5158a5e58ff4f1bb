"""A soak of three tenants on one engine under a reader of its raw KV memory.

Clients ask, go away in the middle, run their tenants out of blocks and get long prompts computed in chunks, while the policy is
edited through the mount: shares, caps, rotations, a tenant that leaves and returns. All the time the reader looks, between two
steps, at the tensors that the attention layers use: every clean block is zero, every table names its owner's blocks only, and no
block holds more than its owner has written into it. Answers are those of each tenant alone.

90 seconds; a quarter of an hour in the nightly profile (BLOCKWARDEN_NIGHTLY=1).
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

SECONDS = 900 if os.environ.get("BLOCKWARDEN_NIGHTLY") == "1" else 90
TWIN_SECONDS = 30
PROMPTS = 10
"""How many each tenant has."""
READ = """
def read(worker, block_size):
    caches = worker.model_runner.kv_caches
    filled = [(cache != 0).flatten(1).sum(1).tolist() for cache in caches]
    whole = sum(cache.numel() * cache.element_size() for cache in caches) == caches[0].untyped_storage().nbytes()
    tables = {name: sum(state.block_ids, []) for name, state in worker.model_runner.requests.items()}
    return [max(counts) for counts in zip(*filled)], caches[0][0].numel() // block_size, tables, whole
ledger, size = scheduler.ledger, scheduler.block_size
(filled, slot, sent, whole), = core.model_executor.collective_rpc(read, args=(size,))
table, foreign, room = scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks, [], {}
for request in scheduler.running:
    own, domain = [block.block_id for block in table[request.request_id]], request.trust_domain
    foreign += [block for block in own + sent.get(request.request_id, []) if block and ledger.domains[block] is not domain]
    for at, block in enumerate(own):
        room[block] = max(room.get(block, 0), min(size, request.num_computed_tokens - at * size))
hashed = [block.block_id for block in scheduler.pool.blocks if block.block_hash is not None]
foreign += [block for block in hashed if ledger.domains[block] is None]
clean = [block for block in range(1, len(filled)) if ledger.state(block) == 1]
result = {
    "written": [block for block in clean if filled[block]],
    "foreign": foreign,
    "left over": [block for block, slots in room.items() if block and filled[block] > max(0, slots) * slot],
    "whole": whole, "clean": len(clean), "running": len(scheduler.running), "in use": sum(filled[block] > 0 for block in room),
    "chunks": sum(request.is_prefill_chunk for request in scheduler.running),
}
"""
"""`left over`: blocks in use with more non-zero numbers than the tokens have that their requests computed. Random weights write
no zeroes, so whatever an earlier owner left in a block's unused slots shows."""
SCRUB_OFF = "scrubber._zero = lambda ids: None"
EARLY_CLEAN = """
late, zero = [], scrubber._zero
def behind(ids):
    due, late[:] = list(late), ids
    zero(due)
scrubber._zero = behind
"""
"""Blocks are acknowledged in the step that orders their zeroes, and zeroed with the next order."""
BREAK = """
def breaking(worker):
    scrubber = worker._scrubber
    worker.verified, scrubber._verify = scrubber._verify, "Off"
    exec({twin!r}, {{"scrubber": scrubber}})
core.model_executor.collective_rpc(breaking)
"""
MEND = """
def mending(worker):
    del worker._scrubber._zero
    worker._scrubber._verify = worker.verified
    worker._scrubber.wipe()
core.model_executor.collective_rpc(mending)
"""


@pytest.fixture
def mounted(policy_again: Any, soak: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The shared engine's files, the policy mounted as the kubelet does it until the default one is mounted again."""
    monkeypatch.setattr(policy_again, "mount", soak.swap_mount(policy_again.root))
    return policy_again


@pytest.fixture(scope="module")
def lives(engines: Any, soak: Any) -> tuple[int, Any]:
    """A seed, and what each tenant's answers are while nobody else asks anything."""
    seed = random.randrange(1 << 32)
    return seed, soak.learn(engines.get("asynchronous"), random.Random(seed), PROMPTS)


def read_for(life: Any, seconds: float, enough: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """What the reader sees during a soak, until a reading is `enough`."""
    readings, deadline = [], time.monotonic() + seconds
    with life.running():
        while time.monotonic() < deadline:
            readings.append(life.engine.core(READ))
            if enough(readings[-1]):
                break
            time.sleep(0.05)
    return readings


@pytest.mark.timeout(SECONDS + 900)
def test_no_block_is_read_across_owners_and_every_clean_one_is_zero(engine: Any, mounted: Any, soak: Any, lives: Any) -> None:
    seed, tasks = lives
    before, life = Counter(engine.report().counters), soak.Soak(engine, tasks, seed)
    readings = read_for(life, SECONDS, lambda _reading: bool(life.wrong))
    counters = Counter(engine.report().counters) - before
    print(f"seed {seed}: {len(readings)} readings, {dict(life.seen)}, {dict(counters)}")
    assert not life.wrong, f"seed {seed}: {life.wrong[:5]}"
    for kind in ("written", "foreign", "left over"):
        assert not [reading[kind] for reading in readings if reading[kind]], f"seed {seed}: {kind}"
    assert all(reading["whole"] for reading in readings), "the reader does not see all of the memory"
    assert not counters["guard_violations"] + counters["preemption_vetoes"], f"seed {seed}: {counters}"
    _check_that_it_was_a_soak(readings, life, counters)
    engine.wait_for(lambda report: not any(share.running + share.waiting for share in report.tenants))
    engine.empty_cache()
    rest = engine.core(READ)
    assert (rest["clean"], rest["written"]) == (128, [])


def _check_that_it_was_a_soak(readings: list[dict[str, Any]], life: Any, counters: Counter[str]) -> None:
    """Everything that it is about did happen."""
    for kind in ("clean", "running", "in use", "chunks"):
        assert sum(reading[kind] for reading in readings) > 0, f"never anything {kind}"
    for kind in ("compared", "aborted", "edit: share", "edit: cap", "edit: rotate", "edit: leave"):
        assert life.seen[kind] > 0, f"never {kind}: {life.seen}"
    for kind in ("blocks_scrubbed", "blocks_zeroed_in_place", "preempted_by_own_tenant"):
        assert counters[kind] > 0, f"never {kind}: {counters}"


@pytest.mark.parametrize("twin", [SCRUB_OFF, EARLY_CLEAN], ids=["scrub off", "early clean"])
def test_a_scrub_that_does_not_hold_is_caught(engine: Any, mounted: Any, soak: Any, lives: Any, twin: str) -> None:
    seed, tasks = lives
    life = soak.Soak(engine, tasks, seed)
    engine.core(BREAK.format(twin=twin))
    try:
        readings = read_for(life, TWIN_SECONDS, lambda reading: bool(reading["written"]))
    finally:
        engine.wait_for(lambda report: not any(share.running + share.waiting for share in report.tenants))
        engine.empty_cache()
        engine.core(MEND)
    assert readings[-1]["written"], f"seed {seed}: {len(readings)} readings found nothing"
    assert engine.core(READ)["written"] == []
