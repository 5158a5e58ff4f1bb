"""Engines of two ranks: tensor and pipeline parallel. Every rank zeroes, is read, and takes the engine down when it cannot zero.

An engine ends with its last test here, so each serves for everything that is to be seen on two ranks: isolation, quotas, and the
modes that need an engine of their own (LoRA, n-gram speculation, prompts in chunks of 128 tokens).
"""

from __future__ import annotations

import random
import re
import time
from pathlib import Path
from typing import Any

import pytest

from blockwarden_core import engine_args

LIMIT = 37
END_SECONDS = 10
CHUNKS = "--max-num-batched-tokens=128"
NGRAM = f"--speculative-config={engine_args.NGRAM}"
ENGINES: dict[str, tuple[bool, tuple[str, ...]]] = {
    "tensor 0": (False, ("--tensor-parallel-size=2", NGRAM, "--enable-lora", "--max-lora-rank=8")),
    "tensor 1": (True, ("--tensor-parallel-size=2", CHUNKS, "--enable-lora", "--max-lora-rank=8")),
    "pipeline 0": (False, ("--pipeline-parallel-size=2", CHUNKS)),
    "pipeline 1": (False, ("--pipeline-parallel-size=2",)),
}
"""Engines by how they are split and which rank fails in the end: whether the scheduler is asynchronous, and arguments."""

RANKS = """
from blockwarden_engine.aggregate import AckAggregator
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
executor = core.model_executor
result = [type(executor.kv_output_aggregator).__name__, scheduler._ranks, executor.output_rank, core.batch_queue_size]
executor.kv_output_aggregator = AckAggregator(KVOutputAggregator(2))
"""
ABORT_C = """
from vllm.v1.request import RequestStatus
ids = [request.request_id for request in scheduler.requests.values() if request.trust_domain.tenant.name == "c"]
core._send_abort_outputs(scheduler.finish_requests(ids, RequestStatus.FINISHED_ABORTED))
"""
SPECULATED = """
scheduler.drafted = scheduler.accepted = 0
original = type(scheduler).update_from_output
def watched(output, answer):
    scheduler.drafted += sum(map(len, output.scheduled_spec_decode_tokens.values()))
    scheduler.accepted += sum(max(0, len(tokens) - 1) for tokens in answer.sampled_token_ids)
    return original(scheduler, output, answer)
scheduler.update_from_output = watched
"""
IDLE = """
def idle(worker):
    if worker.rank == RANK:
        worker._scrubber._verify = "Off"
        worker._scrubber._zero = lambda ids: None
core.model_executor.collective_rpc(idle)
"""
FAIL = """
def fail(worker):
    import hashlib, time
    def now(ids):
        print(f"INJECTED {time.time()}", flush=True)
        raise RuntimeError("this rank cannot zero")
    if worker.rank == RANK:
        worker._scrubber._zero = now
    elif STUCK:  # as in a collective whose other side is gone and that never times out: no signal gets through
        worker.model_runner.execute_model = lambda *args: hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
core.model_executor.collective_rpc(fail)
scheduler.pool.ledger.evict_all()
"""


@pytest.fixture(scope="module", params=list(ENGINES))
def rank_engine(request: pytest.FixtureRequest, engines: Any, tiny_adapter: Path) -> Any:
    """The engine of this name."""
    asynchronous, extra = ENGINES[request.param]
    lora = (f"--lora-modules=adapter={tiny_adapter}",) if "--enable-lora" in extra else ()
    return engines.get(request.param, asynchronous=asynchronous, extra=(*extra, *lora))


@pytest.fixture
def rank(rank_engine: Any, request: pytest.FixtureRequest) -> int:
    """The rank that fails in the end."""
    return int(request.node.callspec.params["rank_engine"].split()[1])


def test_every_rank_acknowledges(rank_engine: Any, isolated: Any, at_once: Any, reader: Any) -> None:
    """From here on behind a KV connector's aggregator, vLLM's own one: the acknowledgements must get through it."""
    assert rank_engine.core(RANKS)[:2] == ["AckAggregator", 2]
    with isolated(rank_engine):
        answers = at_once(rank_engine, *((tenant, 200, 60) for tenant in "abcabc"))
        assert {answer.result().status for answer in answers} == {200}
        rank_engine.utility("reset_prefix_cache", False, False)
    at_once(rank_engine, ("a", 200, 2))[0].result()
    reading = reader(rank_engine)
    assert reading["used"] == [reading["owned"]] * 2, "a rank holds nothing of what is cached: the reader would see nothing there"


def test_quotas_hold(rank_engine: Any, isolated: Any, at_once: Any) -> None:
    with isolated(rank_engine):
        answers = at_once(rank_engine, *((tenant, random.randrange(100, 600), 100) for tenant in "abcabcabcabc"))
        most = 0
        while not all(answer.done() for answer in answers):
            most = max(most, *(tenant.owned_blocks for tenant in rank_engine.report().tenants))
            time.sleep(0.05)
        assert {answer.result().status for answer in answers} == {200}
    assert LIMIT - 10 <= most <= LIMIT


def test_resets_aborts_and_preemption(rank_engine: Any, isolated: Any, at_once: Any) -> None:
    before = rank_engine.report().counters.get("preempted_by_own_tenant", 0)
    with isolated(rank_engine):
        answers = at_once(rank_engine, ("a", 520, 160), ("a", 520, 160), ("b", 300, 200), ("c", 300, 200))
        rank_engine.wait_for(lambda report: any(tenant.running for tenant in report.tenants if tenant.name == "c"))
        assert rank_engine.utility("reset_prefix_cache", True, False) is True
        rank_engine.wait_for(lambda report: any(tenant.running for tenant in report.tenants if tenant.name == "c"))
        rank_engine.core(ABORT_C)
        reasons = [answer.result().json()["choices"][0]["finish_reason"] for answer in answers]
    assert reasons == ["length", "length", "length", "abort"]
    assert rank_engine.report().counters["preempted_by_own_tenant"] > before


@pytest.mark.parametrize("rank_engine", ["tensor 0", "tensor 1"], indirect=True)
def test_an_adapter_has_a_cache_of_its_own(rank_engine: Any, isolated: Any, at_once: Any, tenants_apart: Any) -> None:
    token, prompt = rank_engine.deployment.token("a", user="lora"), [random.randrange(5, 400) for _ in range(100)]
    texts = {
        model: rank_engine.complete(token, prompt, model=model).json()["choices"][0]["text"] for model in ("tiny", "adapter")
    }
    assert texts["tiny"] != texts["adapter"], "the adapter changes nothing, so it may not have been applied"
    with isolated(rank_engine):
        answers = [
            answer
            for model in ("tiny", "adapter")
            for answer in at_once(rank_engine, *((tenant, 300, 60) for tenant in "abc"), model=model)
        ]
        assert {answer.result().status for answer in answers} == {200}
        tenants_apart(rank_engine, model="adapter")
        scope, models = rank_engine.deployment.token("a", user="fresh"), ("tiny", "adapter", "tiny", "adapter")
        assert [rank_engine.cached(scope, prompt, model=model) for model in models] == [0, 0, 96, 96]


@pytest.mark.parametrize("rank_engine", ["tensor 0"], indirect=True)
def test_tokens_guessed_from_a_requests_own_text(rank_engine: Any, isolated: Any) -> None:
    rank_engine.core(SPECULATED)
    with isolated(rank_engine):
        for tenant in "abcabc":
            token = rank_engine.deployment.token(tenant, user=str(random.getrandbits(32)))
            prompt = [random.randrange(5, 400) for _ in range(20)] * 5
            assert rank_engine.complete(token, prompt, max_tokens=200).json()["usage"]["completion_tokens"] == 200
    drafted, accepted = rank_engine.core("del scheduler.update_from_output; result = [scheduler.drafted, scheduler.accepted]")
    assert drafted > accepted > 0, "both taken and rejected guesses leave something in blocks"


def test_a_rank_that_zeroes_nothing_is_seen(rank_engine: Any, rank: int, at_once: Any, reader: Any) -> None:
    rank_engine.core(f"RANK = {rank}\n{IDLE}")
    for answer in at_once(rank_engine, *((tenant, 300, 60) for tenant in "abc")):
        answer.result()
    rank_engine.utility("reset_prefix_cache", False, False)
    rank_engine.wait_for(lambda report: report.pool.dirty == report.pool.scrubbing == 0)
    written = reader(rank_engine)["written"]
    assert written[rank]
    assert not written[1 - rank]


def test_a_rank_that_cannot_zero_ends_the_engine(rank_engine: Any, rank: int, at_once: Any, engines: Any) -> None:
    """In a step with a forward pass, in which the other rank waits; in the last engine it waits where no signal reaches it."""
    at_once(rank_engine, ("a", 300, 2))[0].result()
    (served,) = at_once(rank_engine, ("b", 60, 900))
    rank_engine.wait_for(lambda report: any(tenant.running for tenant in report.tenants))
    rank_engine.core(f"RANK = {rank}; STUCK = {rank == 1}\n{FAIL}")
    assert rank_engine.wait_ended(60) is not None
    ended, log = time.time(), rank_engine.log.read_text(errors="replace")
    injected = re.search(r"INJECTED ([0-9.]+)", log)
    assert injected is not None
    assert ended - float(injected[1]) < END_SECONDS
    assert f"a step failed on rank {rank}; this worker ends, and the engine with it" in log
    with pytest.raises(AssertionError):
        assert served.result().status == 200
    engines.stop()
