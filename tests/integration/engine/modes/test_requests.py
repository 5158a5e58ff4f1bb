"""What can happen to requests: their clients leave at any moment, they are preempted, cut into chunks, bound to a grammar."""

from __future__ import annotations

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

KINDS = pytest.mark.parametrize("kind", ["engine", "sync_engine", "twin_engine"])
IN_USE = "result = sum(state == 2 for state in scheduler.ledger._state) + len(scheduler.deferred_frees)"
WATCH = """
scheduler.chunks = 0
original = type(scheduler).schedule
def watched(*args, **kwargs):
    output = original(scheduler, *args, **kwargs)
    for new in output.scheduled_new_reqs:
        scheduler.chunks += new.num_computed_tokens + output.num_scheduled_tokens[new.req_id] < len(new.prompt_token_ids)
    return output
scheduler.schedule = watched
"""


@KINDS
def test_clients_that_leave_at_any_moment(subject: Any, held: Any) -> None:
    def leave(seed: int) -> None:
        chance = random.Random(seed)
        body = {
            "model": "tiny", "prompt": [chance.randrange(5, 400) for _ in range(chance.randrange(1, 400))], "max_tokens": 200,
            "ignore_eos": True, "stream": bool(seed % 2), "cache_salt": subject.deployment.token("abc"[seed % 3], user=str(seed)),
        }  # fmt: skip
        connection = subject.connection()
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        time.sleep(chance.choice((0, 0.01, 0.05, 0.2, 0.5)))
        connection.close()

    with held(subject):
        with ThreadPoolExecutor(12) as pool:
            list(pool.map(leave, range(36)))
        subject.wait_for(lambda report: not sum(tenant.running + tenant.waiting for tenant in report.tenants))
        assert subject.core(IN_USE) == 0, "a request that is gone left blocks in use"


@KINDS
def test_preempted_by_its_own_tenant_and_resumed(subject: Any, held: Any, at_once: Any) -> None:
    """Each request of a fits into its 38 blocks, both do not; b has room for its own and is left alone."""
    before = subject.report().counters.get("preempted_by_own_tenant", 0)
    with held(subject):
        answers = at_once(subject, ("a", 520, 180), ("a", 520, 180), ("b", 520, 180))
        assert {answer.result().json()["usage"]["completion_tokens"] for answer in answers} == {180}
    assert subject.report().counters["preempted_by_own_tenant"] > before


@KINDS
def test_prompts_cut_into_chunks(subject: Any, held: Any, at_once: Any) -> None:
    """All three come in one step, which has 1,024 tokens."""
    subject.core(WATCH)
    with held(subject):
        subject.utility("pause_scheduler", "keep", False)
        answers = at_once(subject, *((tenant, 900, 40) for tenant in "abc"))
        subject.wait_for(lambda report: sum(tenant.waiting for tenant in report.tenants) == 3)
        subject.utility("resume_scheduler")
        assert {answer.result().json()["usage"]["total_tokens"] for answer in answers} == {940}
    assert subject.core("del scheduler.schedule; result = scheduler.chunks") > 0, "no prompt was cut"


@KINDS
def test_answers_bound_to_a_grammar(subject: Any, held: Any, at_once: Any) -> None:
    """Of the text only the end counts: the detokenizer repeats a prompt in it that ends in the middle of a character."""
    with held(subject):
        answers = [
            answer
            for tenant, letter in zip("abc", "xyz", strict=True)
            for answer in at_once(subject, (tenant, 50, 90), structured_outputs={"regex": f"{letter}{{70}}"}, ignore_eos=False)
        ]
        choices = [answer.result().json()["choices"][0] for answer in answers]
    assert [choice["text"][-70:] for choice in choices] == [letter * 70 for letter in "xyz"]
    assert {choice["finish_reason"] for choice in choices} == {"stop"}
