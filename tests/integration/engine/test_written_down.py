"""What an engine writes down: its log, its metrics and the last words of an engine that fails, searched for what tenants said.

Every request here carries a canary in each place that a tenant's text can be in, and many are requests that vLLM complains about.
The last tests end the engine in a step that holds such a request; the twin writes down what vLLM writes then. (They come after
the others that share these engines: files run in the order of their names.)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blockwarden_core import layout

CANARY = "canary7f3a"
SCHEMA = {"type": "object", "properties": {CANARY: {"type": "string", "pattern": f"^{CANARY}[a-z]$"}}, "required": [CANARY]}
ODD: dict[str, dict[str, Any]] = {
    "a plain prompt": {},
    "stop strings and forbidden words": {"stop": [CANARY], "bad_words": [CANARY]},
    "a schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    "a schema that is none": {"structured_outputs": {"json": f'{{"type": "{CANARY}"}}'}},
    "a broken regular expression": {"structured_outputs": {"regex": f"({CANARY}"}},
    "a broken grammar": {"structured_outputs": {"grammar": f"root ::= {CANARY}"}},
    "choices": {"structured_outputs": {"choice": [CANARY, "other"]}},
    "two constraints": {"structured_outputs": {"regex": CANARY, "choice": [CANARY]}},
    "a prompt that is too long": {"prompt": f"{CANARY} " * 2000},
    "a wrong type": {"max_tokens": CANARY},
    "a field that vLLM does not know": {CANARY: CANARY},
    "a user": {"user": CANARY},
    "a model that is not there": {"model": CANARY},
    "a stream": {"stream": True},
    "log probabilities out of range": {"logprobs": 10**6},
    "a bias outside of the vocabulary": {"logit_bias": {"999999": 5}},
}
CRASH = """
def fail(*args, **kwargs):
    raise RuntimeError("a step that fails")
core.model_executor.driver_worker.worker.model_runner.execute_model = fail
"""
LAST_WORDS = "blockwarden: the engine fails in a step of"


def secrets_of(engine: Any, tenants: str = "ab") -> list[str]:
    """Tokens, their salts and their tags."""
    tokens = [engine.deployment.token(tenant) for tenant in tenants]
    return [*tokens, *(part for token in tokens for part in token.split(".")[3:])]


def found_in(text: str, engine: Any) -> list[str]:
    return [secret for secret in (CANARY, *secrets_of(engine)) if secret in text]


def send(engine: Any, tenant: str, **fields: Any) -> Any:
    return engine.complete(engine.deployment.token(tenant), **{"prompt": f"{CANARY} said the tenant", **fields})


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_nothing_that_tenants_say_is_in_the_log_or_the_metrics(vision_engine: Any) -> None:
    for what, fields in ODD.items():
        answers = [send(vision_engine, tenant, **fields) for tenant in "ab"]
        assert len({answer.status for answer in answers}) == 1, what
    chat = {"model": "tiny", "max_tokens": 4, "messages": [{"role": CANARY, "content": CANARY}], "tools": [{"type": CANARY}]}
    vision_engine.request("POST", "/v1/chat/completions", chat | {"cache_salt": vision_engine.deployment.token("a")})
    vision_engine.request("POST", "/v1/completions", f'{{"prompt": "{CANARY}", '.encode())
    for path in (layout.METRICS_PATH, layout.STATUS_PATH):
        assert found_in(vision_engine.internal(path).body.decode(), vision_engine) == []
    assert found_in(vision_engine.log.read_text(errors="replace"), vision_engine) == []


def test_no_process_of_the_engine_can_leave_its_memory_behind(vision_engine: Any) -> None:
    processes = [vision_engine.process.pid, *children(vision_engine.process.pid)]
    assert len(processes) > 1, "the engine core is a process of its own"
    for pid in processes:
        (line,) = [line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if line.startswith("Max core file size")]
        assert {int(size) for size in line.split()[4:6]} <= {0, 1}


def crash(engine: Any) -> str:
    """What the engine adds to its log when a step with a tenant's request fails."""
    before = len(engine.log.read_text(errors="replace"))
    engine.core(CRASH)
    answer = send(engine, "a", stop=[CANARY], structured_outputs={"json": json.dumps(SCHEMA)})
    assert answer.status >= 500
    assert engine.wait_ended(60) is not None
    return str(engine.log.read_text(errors="replace")[before:])


def test_the_last_words_of_an_engine_hold_nothing_that_tenants_say(vision_engine: Any) -> None:
    words = crash(vision_engine)
    assert LAST_WORDS in words
    assert found_in(words, vision_engine) == []


def test_vllms_own_last_words_are_the_twin(media_engine: Any) -> None:
    words = crash(media_engine)
    assert LAST_WORDS not in words
    assert CANARY in found_in(words, media_engine)
    with pytest.raises(AssertionError):
        assert found_in(words, media_engine) == []
