"""What is checked on a step's way down and on its way up, without an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from blockwarden_engine.aggregate import AckAggregator, join_acks
from blockwarden_engine.domains import Domain
from blockwarden_engine.errors import MismatchedAck, MissingAck, UnsupportedEngine
from blockwarden_engine.guard import drop_request, drop_sampled, find_foreign
from blockwarden_engine.ledger import Ledger
from blockwarden_engine.protocol import ATTRIBUTE, StepAck
from blockwarden_engine.quotas import Quota
from blockwarden_engine.support import check_supported


@pytest.fixture
def owned() -> tuple[list[Domain | None], dict[str, Any]]:
    """Blocks 1 to 3 are a's, 4 is b's, 5 is nobody's; one request each."""
    ledger = Ledger(6)
    ledger.apply({"a": Quota(3, 3, 3, 1, 1), "b": Quota(1, 1, 1, 1, 1)})
    a, b = ledger.enter("a", 1, "s"), ledger.enter("b", 1, "s")
    domains: list[Domain | None] = [None, a, a, a, b, None]
    return domains, {"ra": SimpleNamespace(trust_domain=a), "rb": SimpleNamespace(trust_domain=b)}


def step(new: dict[str, list[int]], cached: dict[str, list[int] | None]) -> Any:
    names = list(cached)
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=name, block_ids=(ids,)) for name, ids in new.items()],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=names, new_block_ids=[None if ids is None else (ids,) for ids in cached.values()],
            num_computed_tokens=[0] * len(names), num_output_tokens=[0] * len(names), new_token_ids=[],
            resumed_req_ids=set(names), all_token_ids={name: [] for name in names},
        ),
        num_scheduled_tokens=dict.fromkeys((*new, *cached), 3), total_num_scheduled_tokens=3 * (len(new) + len(cached)),
        scheduled_spec_decode_tokens={}, scheduled_encoder_inputs={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("new", "cached", "found"),
    [
        ({"ra": [1, 2]}, {"rb": [4]}, []),
        ({"ra": [1, 0]}, {"rb": None}, []),
        ({"ra": [1, 4]}, {}, [("ra", 4)]),
        ({"ra": [5]}, {}, [("ra", 5)]),
        ({}, {"rb": [3]}, [("rb", 3)]),
        ({"ra": [99], "rb": [-1]}, {}, [("ra", 99), ("rb", -1)]),
    ],
    ids=["own", "null block", "another's", "nobody's", "added later", "no such block"],
)
def test_only_owned_blocks_pass(owned: Any, new: Any, cached: Any, found: Any) -> None:
    domains, requests = owned
    assert find_foreign(step(new, cached), requests, domains) == found


def test_a_request_without_a_trust_domain_may_use_nothing(owned: Any) -> None:
    domains, _ = owned
    assert find_foreign(step({"r": [5]}, {}), {"r": SimpleNamespace(trust_domain=None)}, domains) == [("r", 5)]


def test_a_dropped_request_leaves_no_trace_in_the_step() -> None:
    output = step({"ra": [1]}, {"rb": [4], "rc": None})
    assert drop_request(output, "rb") == 3
    assert drop_request(output, "ra") == 3
    assert drop_request(output, "unknown") == 0
    assert output.num_scheduled_tokens == {"rc": 3}
    assert output.total_num_scheduled_tokens == 3
    assert output.scheduled_new_reqs == []
    assert output.scheduled_cached_reqs.req_ids == ["rc"]
    assert output.scheduled_cached_reqs.new_block_ids == [None]
    assert output.scheduled_cached_reqs.resumed_req_ids == {"rc"}


def test_what_an_offender_sampled_is_dropped() -> None:
    output = SimpleNamespace(
        req_id_to_index={"ra": 0, "rb": 1}, sampled_token_ids=[[7], [8]], prompt_logprobs_dict={"ra": 1},
        prompt_token_id_logprobs_dict={},
    )  # fmt: skip
    drop_sampled(output, "ra")
    assert output.sampled_token_ids == [[], [8]]
    assert output.prompt_logprobs_dict == {}


def test_all_ranks_acknowledge_as_one() -> None:
    joined = join_acks([StepAck(3, 2, [("r", 1)]), StepAck(3, 2, [("r", 1), ("s", 2)])])
    assert joined == StepAck(3, 2, [("r", 1), ("s", 2)], ranks=2)


@pytest.mark.parametrize("acks", [[], [StepAck(1, 1), None], [None]])
def test_a_silent_rank_ends_the_engine(acks: list[StepAck | None]) -> None:
    with pytest.raises(MissingAck):
        join_acks(acks)


@pytest.mark.parametrize("other", [StepAck(2, 1), StepAck(1, 2)])
def test_ranks_that_disagree_end_the_engine(other: StepAck) -> None:
    with pytest.raises(MismatchedAck):
        join_acks([StepAck(1, 1), other])


def test_the_aggregator_goes_around_a_connectors_own() -> None:
    outputs = [SimpleNamespace(**{ATTRIBUTE: StepAck(1, 1)}, rank=rank) for rank in range(2)]
    inner = SimpleNamespace(aggregate=lambda outputs, rank: SimpleNamespace(merged=True, rank=rank))
    assert AckAggregator().aggregate([None, None]) is None
    plain = AckAggregator().aggregate(outputs, 1)
    assert plain is outputs[1]
    assert getattr(plain, ATTRIBUTE).ranks == 2
    merged = AckAggregator(inner).aggregate([SimpleNamespace(**{ATTRIBUTE: StepAck(1, 1)}) for _ in range(2)], 0)
    assert merged.merged
    assert getattr(merged, ATTRIBUTE).ranks == 2


def config(**changes: Any) -> Any:
    parallel = {"pipeline_parallel_size": 1, "decode_context_parallel_size": 1, "prefill_context_parallel_size": 1}
    model = {"is_encoder_decoder": False, "is_diffusion": False, "multimodal_config": None}
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**{name: changes.get(name, value) for name, value in parallel.items()}),
        model_config=SimpleNamespace(**{name: changes.get(name, value) for name, value in model.items()}),
        scheduler_config=SimpleNamespace(policy=changes.get("policy", "fcfs")),
        kv_transfer_config=changes.get("kv_transfer_config"),
        ec_transfer_config=changes.get("ec_transfer_config"),
    )


@pytest.mark.parametrize(
    "change",
    [
        {"policy": "priority"}, {"pipeline_parallel_size": 2}, {"decode_context_parallel_size": 2},
        {"prefill_context_parallel_size": 2}, {"is_encoder_decoder": True}, {"is_diffusion": True},
        {"kv_transfer_config": object()}, {"ec_transfer_config": object()},
        {"multimodal_config": SimpleNamespace(language_model_only=False)},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_what_is_not_kept_apart_does_not_start(change: dict[str, Any]) -> None:
    check_supported(config())
    check_supported(config(multimodal_config=SimpleNamespace(language_model_only=True)))
    with pytest.raises(UnsupportedEngine):
        check_supported(config(**change))
