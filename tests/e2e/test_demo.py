"""Issue point 1: the demo's own judgement is what brings the fixture up; here is what it leaves running, as a user finds it."""

from __future__ import annotations

import subprocess

import pytest

from stack import nextsteps
from stack.prompts import private_prompt

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]


def test_the_policy_is_ready_and_says_so_in_its_columns(product) -> None:
    shown = product.cluster.run("-n", "blockwarden-demo", "get", "tpol").splitlines()
    assert shown[0].split()[:6] == ["NAME", "READY", "REASON", "ENDPOINT", "TENANTS", "SALT"]
    assert shown[1].split()[:2] == ["demo", "True"]


def test_the_printed_lines_work_as_printed(product) -> None:
    text = nextsteps.next_steps(product.deployed, product.url)
    lines = [line.strip() for line in text.splitlines() if line.startswith("  ") and "make demo-down" not in line]
    done = subprocess.run(["bash", "-ec", "\n".join(lines)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert '"smollm2-135m-instruct"' in done.stdout
    assert "Paris" in done.stdout
    product.deployed.wait_idle()


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "Hello", "logprobs": 0}),
        ("/v1/completions", {"prompt": ["Hello", "Bye"], "logprobs": 5, "n": 2, "temperature": 0.7, "top_k": 5, "top_p": 0.9}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": 2}),
    ],
)
def test_no_documented_field_takes_the_engine_down(product, path, fields) -> None:
    """Each of these once made PyTorch compile something in the engine's image, which has no compiler: the engine died of it."""
    acme = product.client("acme")
    answer = acme.post(path, {"model": "smollm2-135m-instruct", "max_tokens": 2} | fields)
    assert answer.status == 200, answer.text
    assert all(choice["logprobs"] for choice in answer.body["choices"])
    [engine] = product.deployed.pods("engine")
    assert engine["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_client_that_sends_what_it_must_not_changes_nothing(product) -> None:
    """Issue point 2 on the running product: whatever B sends along, it shares nothing with A, and each with itself."""
    prompt = private_prompt("smuggled", sentences=12)
    acme, globex = product.client("acme"), product.client("globex")
    assert acme.chat("smollm2-135m-instruct", prompt).cached_tokens == 0
    smuggled = {
        "cache_salt": "",
        "kv_transfer_params": {"do_remote_prefill": True},
        "vllm_xargs": {"kv_transfer_params": {"x": 1}},
        "request_id": "chosen",
        "session_id": "s",
        "priority": -5,
        "unknown": True,
    }
    assert globex.chat("smollm2-135m-instruct", prompt, **smuggled).cached_tokens == 0
    headers = {"X-Request-Id": "chosen", "X-Tenant-Id": "acme", "X-data-parallel-rank": "0", "X-Session-ID": "s"}
    crafty = type(globex)(globex.base_url, globex.api_key, headers)
    again = crafty.chat("smollm2-135m-instruct", prompt, **(smuggled | {"cache_salt": "mine"}))
    assert again.cached_tokens is not None
    assert again.cached_tokens > 0, "the client's own salt must not have taken it out of its tenant's scope"
    assert acme.chat("smollm2-135m-instruct", prompt, cache_salt="other").cached_tokens > 0
