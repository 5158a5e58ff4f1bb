"""Both schedulers: the asynchronous one really runs two steps deep here, and both answer what the model alone answers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

PROMPTS = [[(seed * 37 + at * 11) % 480 + 5 for at in range(40 + 30 * seed)] for seed in range(6)]
LENGTH = 24
EPSILON = 1e-3
WATCH = """
scheduler.deepest = 0
original = type(scheduler).schedule
def watched(*args, **kwargs):
    scheduler.deepest = max(scheduler.deepest, len(core.batch_queue or ()) + 1)
    return original(scheduler, *args, **kwargs)
scheduler.schedule = watched
"""
SEEN = "del scheduler.schedule; result = [type(scheduler).__name__, scheduler.deepest]"


@pytest.fixture(scope="module")
def expected(tiny_model: Path) -> list[tuple[list[int], list[float]]]:
    """Per prompt, the model's own greedy answer and its best two logits' distance, computed without an engine."""
    import torch
    from transformers import LlamaForCausalLM

    model, answers = LlamaForCausalLM.from_pretrained(tiny_model, dtype=torch.float32), []
    for prompt in PROMPTS:
        tokens, margins = list(prompt), []
        for _ in range(LENGTH):
            with torch.inference_mode():
                best = model(torch.tensor([tokens])).logits[0, -1].topk(2)
            margins.append(float(best.values[0] - best.values[1]))
            tokens.append(int(best.indices[0]))
        answers.append((tokens[len(prompt) :], margins))
    return answers


@pytest.mark.parametrize(
    ("kind", "scheduler", "depth"), [("engine", "TenantAsyncScheduler", 2), ("sync_engine", "TenantScheduler", 1)]
)
def test_answers_are_the_models_own(
    kind: str, scheduler: str, depth: int, expected: list[tuple[list[int], list[float]]], request: pytest.FixtureRequest
) -> None:
    engine: Any = request.getfixturevalue(kind)
    engine.core(WATCH)
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = list(pool.map(lambda at: _generate(engine, at), range(len(PROMPTS))))
    assert engine.core(SEEN) == [scheduler, depth]
    for answer, (tokens, margins) in zip(answers, expected, strict=True):
        at = next((at for at in range(LENGTH) if answer[at] != tokens[at]), None)
        assert at is None or margins[at] < EPSILON, f"token {at} differs and its margin is {margins[at]}"


def _generate(engine: Any, at: int) -> list[int]:
    token = engine.deployment.token("abc"[at % 3], user=f"async{at}")
    answer = engine.complete(token, PROMPTS[at], max_tokens=LENGTH, return_token_ids=True)
    assert answer.status == 200, answer.body
    return list(answer.json()["choices"][0]["token_ids"])


def test_the_scheduler_knows_its_engine(engine: Any) -> None:
    """Else a new policy would wait for the next request, and with several ranks nobody would ask the others to acknowledge."""
    assert "attach_engine" in engine.core("result = scheduler._wake.__qualname__")
