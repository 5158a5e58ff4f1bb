"""What is written down of a step that fails."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from blockwarden_engine.dump import dump_engine_exception, render_step

SECRET = "what the tenant said"
NEW = SimpleNamespace(
    req_id="cmpl-1", prompt_token_ids=[7001, 7002], num_computed_tokens=0, block_ids=([4, 5],), sampling_params=SECRET,
    mm_features=SECRET,
)  # fmt: skip
STEP = SimpleNamespace(
    scheduled_new_reqs=[NEW], num_scheduled_tokens={"cmpl-1": 2}, total_num_scheduled_tokens=2, finished_req_ids={"cmpl-0"}
)


def test_a_step_is_told_in_numbers() -> None:
    assert render_step(STEP) == (
        "a step of 2 tokens {'cmpl-1': 2}, new ['cmpl-1(prompt 2, computed 0, blocks [2])'], finished ['cmpl-0']"
    )


def test_the_log_holds_no_parameters_and_no_tokens(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        dump_engine_exception(SECRET, STEP, SimpleNamespace(num_running_reqs=1, other=SECRET))
        dump_engine_exception(SECRET, SimpleNamespace(), None)
    assert "cmpl-1" in caplog.text
    assert "cannot be described (AttributeError)" in caplog.text
    assert SECRET not in caplog.text
    assert "7001" not in caplog.text
