"""What an engine refuses to start with, each with one sentence, and what it is always started with."""

from __future__ import annotations

import pytest

from blockwarden_core.kv_transfer import Connector, KvTransfer, render_kv_transfer
from blockwarden_engine.errors import LaunchRefused
from blockwarden_engine.launch import MANDATORY_ARGS, MANDATORY_ENV, check_external_cache, plan_launch, run_eagerly
from blockwarden_engine.settings import BOOT_NONCE_ENV, SCRUB_VERIFY_ENV

ENVIRON = {"BLOCKWARDEN_POLICY_UID": "p", "BLOCKWARDEN_POD_UID": "u", "PATH": "/bin"}
MODEL = "--model=/models/one"

FORBIDDEN_ARGS = [
    "--enable-log-requests", "--enable-log-outputs", "--enable-scale-out", "--tokens-only", "--grpc", "--grpc-port=1",
    "--trust-request-chat-template", "--trust-request-mm-kwargs", "--enable-prompt-embeds", "--enable-mm-embeds",
    "--allowed-local-media-path=/", "--tool-server=demo", "--scheduling-policy=priority", "--prefix-caching-hash-algo=xxhash",
    "--speculative-config={}", "--profiler-config={}", "--kv-transfer-config={}", "--kv-events-config={}",
    "--middleware=x.Y", "--scheduler-cls=x.Y", "--worker-cls=x.Y", "--worker-extension-cls=x.Y", "--api-key=k", "--uds=/tmp/s",
    "--host=0.0.0.0", "--port=1", "--ssl-cert-reqs=0", "--ssl-ca-certs=/tmp/ca", "--lora-modules=a=b",
    "--lora-modules=a=/m/.b", "--data-parallel-size=2", "--trust-remote-code", "--no-enable-prefix-caching",
    "--config=/tmp/x", "--compilation-config.level=3", "--enable_log_requests", "--enable-log-r", "positional", "-O3",
    "--anything-new", "--max-logprobs", "--max-logprobs=x", "--enforce-eager=1",
]  # fmt: skip
FORBIDDEN_ENV = [
    "VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_ENABLE_RESPONSES_API_STORE",
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", "VLLM_ENABLE_COHERE_API", "VLLM_USE_RUST_FRONTEND", "VLLM_MEDIA_CACHE",
    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE", "CUSTOM_FASTAPI_MIDDLEWARES", "VLLM_PLUGINS",
]  # fmt: skip


@pytest.mark.parametrize("argument", FORBIDDEN_ARGS)
def test_every_forbidden_argument_is_refused_in_one_sentence(argument: str) -> None:
    with pytest.raises(LaunchRefused) as refused:
        plan_launch([MODEL, argument], ENVIRON, boot_nonce="n")
    assert "\n" not in str(refused.value)
    assert ": " in str(refused.value), "a refusal names the mend"


@pytest.mark.parametrize("name", FORBIDDEN_ENV)
def test_every_forbidden_variable_is_refused_by_name(name: str) -> None:
    with pytest.raises(LaunchRefused, match=name):
        plan_launch([MODEL], ENVIRON | {name: "1"}, boot_nonce="n")


@pytest.mark.parametrize("name", ["BLOCKWARDEN_POLICY_UID", "BLOCKWARDEN_POD_UID"])
def test_an_engine_without_an_identity_is_refused(name: str) -> None:
    with pytest.raises(LaunchRefused, match=name):
        plan_launch([MODEL], {key: value for key, value in ENVIRON.items() if key != name}, boot_nonce="n")


def test_a_model_is_needed() -> None:
    with pytest.raises(LaunchRefused, match="--model is missing"):
        plan_launch(["--seed=1"], ENVIRON, boot_nonce="n")


def test_everything_that_isolation_needs_is_added() -> None:
    launch = plan_launch([MODEL, "--seed=1", "--kv-scrub-verify=Always"], ENVIRON, boot_nonce="nonce")
    assert set(MANDATORY_ARGS) < set(launch.vllm_args)
    assert {"--host=0.0.0.0", "--port=8000", MODEL, "--seed=1"} < set(launch.vllm_args)
    assert {f"--ssl-{name}" for name in ("certfile", "keyfile", "ca-certs")} == {
        arg.partition("=")[0] for arg in launch.vllm_args if "/tls/server/" in arg
    }
    assert launch.environment == MANDATORY_ENV | {BOOT_NONCE_ENV: "nonce", SCRUB_VERIFY_ENV: "Always"}
    assert (launch.api_port, launch.internal_port) == (8000, 9400)


@pytest.mark.parametrize("argument", ["--kv-scrub-verify=Never", "--bind-host=a b", "--api-port=x", "--internal-port"])
def test_the_launchers_own_arguments_are_checked_too(argument: str) -> None:
    with pytest.raises(LaunchRefused):
        plan_launch([MODEL, argument], ENVIRON, boot_nonce="n")


@pytest.mark.parametrize("connector", list(Connector))
def test_no_external_cache_is_let_in(connector: Connector) -> None:
    """Each is a valid argument, and none of them was shown to keep tenants apart with our pool."""
    rendered = f"--kv-transfer-config={render_kv_transfer(KvTransfer(connector=connector))}"
    with pytest.raises(LaunchRefused, match=r"remove spec[.]engine[.]kvTransfer"):
        check_external_cache(plan_launch([MODEL, rendered], ENVIRON, boot_nonce="n"))
    check_external_cache(plan_launch([MODEL], ENVIRON, boot_nonce="n"))


def test_an_own_argument_twice_is_refused() -> None:
    with pytest.raises(LaunchRefused, match="twice"):
        plan_launch([MODEL, "--api-port=1", "--api-port=2"], ENVIRON, boot_nonce="n")


@pytest.mark.parametrize("given", [[], ["--enforce-eager"]])
def test_where_nothing_can_be_compiled_everything_runs_eagerly(given: list[str]) -> None:
    launch = run_eagerly(plan_launch([MODEL, *given], ENVIRON, boot_nonce="n"))
    assert launch.vllm_args.count("--enforce-eager") == 1
    assert launch.environment["TORCHDYNAMO_DISABLE"] == "1"
    assert launch.environment.items() > MANDATORY_ENV.items()
