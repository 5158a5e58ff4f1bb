"""What an engine may be started with: the allow-list as a list of sentences."""

import re

import pytest

from blockwarden_core import engine_args as ea
from blockwarden_core import unsafe
from blockwarden_core.kv_transfer import Connector, KvTransfer, kv_transfer_refusal, render_kv_transfer

FUSIONX_LINE = (
    '{"kv_connector":"FusIOnXConnector","kv_connector_module_path":"xkv_vllm_connector.fusionx_connector","kv_role":"kv_both",'
    '"kv_connector_extra_config":{"xkv_gateway_port":5557,"chunk_size":128,"require_cache_salt":true,"key_namespace":"prod-glm53"}}'
)


@pytest.mark.parametrize(
    "args",
    [[], ["--max-num-seqs=64"], ["--enforce-eager", "--seed=0"], ["--kv-cache-dtype=fp8"], ["--load-format=dummy"]],
)
def test_arguments_that_keep_isolation_are_allowed(args: list[str]) -> None:
    assert ea.refusal(args) is None


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--enable-log-requests"], "--enable-log-requests is refused (it writes tenants' prompts to the log): remove it"),
        (["--dtype=float32"], "--dtype has a field of its own: set spec.engine.dtype instead"),
        (["--kv-events-config={}"], "--kv-events-config has a field of its own: set spec.engine.kvEvents instead"),
        (["--uds=/x"], "--uds is refused (blockwarden binds the engine itself): remove it"),
        (["--flag-of-tomorrow=1"], "--flag-of-tomorrow is not an engine argument that blockwarden lets through: remove it"),
        (["--max-num-seqs"], "--max-num-seqs needs a value: write --max-num-seqs=<value>"),
        (["--enforce-eager=true"], "--enforce-eager is a switch: write it without a value"),
        (["--max-num-seqs=1k"], "--max-num-seqs has a value that does not match [0-9]{1,12}: change it"),
        (["--seed=1", "--seed=2"], "--seed is given twice: keep one"),
    ],
)
def test_a_refusal_names_the_flag_and_the_mend(args: list[str], sentence: str) -> None:
    assert ea.refusal(args) == sentence


@pytest.mark.parametrize(
    "args",
    [
        ["--max-num-seqs", "64"],
        ["--max_num_seqs=64"],
        ["--max-num-se=64"],
        ["--hf-overrides.vocab_size=1"],
        ["-tp", "2"],
        ["-O3"],
        ["--config", "/tmp/x.yaml"],
        ["--seed=1\n--enable-log-requests"],
        ["--seed=1 "],
        [""],
        ["model"],
        ["--"],
    ],
)
def test_every_other_spelling_that_vllm_reads_is_refused(args: list[str]) -> None:
    assert ea.refusal(args) is not None
    assert ea.launch_refusal(args) is not None


def test_no_refused_flag_is_allowed_anywhere() -> None:
    assert not set(unsafe.FLAGS) & (set(ea.EXTRA_ARGS) | set(ea.FIELD_ARGS))
    assert not set(ea.EXTRA_ARGS) & set(ea.FIELD_ARGS)


def test_no_value_of_a_refused_argument_shows_in_the_refusal() -> None:
    assert "hunter2" not in str(ea.refusal(["--api-key=hunter2"])) + str(ea.refusal(["--seed=hunter2"]))
    assert "hunter2" not in str(ea.env_refusal({"VLLM_API_KEY": "hunter2"})) + str(ea.env_refusal({"TZ": "hunter 2"}))


def test_the_launcher_takes_what_the_operator_renders() -> None:
    transfer = render_kv_transfer(KvTransfer(connector=Connector.OFFLOADING))
    assert (
        ea.launch_refusal([
            "--model=/models/m", "--served-model-name=llama-3.1-8b", "--tensor-parallel-size=2", "--max-model-len=4096",
            "--dtype=float32", "--gpu-memory-utilization=0.9", "--block-size=32", "--num-gpu-blocks-override=64",
            f"--kv-transfer-config={transfer}", f"--kv-events-config={unsafe.KV_EVENTS_CONFIG}", "--max-num-seqs=8",
        ])
        is None
    )  # fmt: skip


@pytest.mark.parametrize("fraction", [0.05, 0.9, 0.123456789, 1 / 3, 1.0])
def test_a_fraction_is_taken_as_python_writes_it(fraction: float) -> None:
    assert ea.launch_refusal([f"--gpu-memory-utilization={fraction}"]) is None


@pytest.mark.parametrize("fraction", ["0", "1.1", "2", "-0.5", "1e-3", "."])
def test_what_is_no_fraction_is_refused(fraction: str) -> None:
    assert ea.launch_refusal([f"--gpu-memory-utilization={fraction}"]) is not None


@pytest.mark.parametrize("path", ["m", "/", "/a/../b", "/.hidden", "/a//b", "org/repo", "/a b", "s3://bucket"])
def test_the_model_is_a_directory_in_the_pod(path: str) -> None:
    assert ea.launch_refusal([f"--model={path}"]) is not None


def test_the_pattern_for_cel_says_what_the_function_says() -> None:
    pattern = ea.pattern_of(ea.EXTRA_ARGS)
    probes = [
        "--seed=1",
        "--seed",
        "--enforce-eager",
        "--enforce-eager=1",
        "--dtype=auto",
        "--xseed=1",
        "--load-format=pt",
        "--seed=1x",
    ]
    assert [bool(re.fullmatch(pattern, probe)) for probe in probes] == [ea.refusal([probe]) is None for probe in probes]


@pytest.mark.parametrize(
    ("env", "allowed"),
    [
        ({"OMP_NUM_THREADS": "2", "VLLM_LOGGING_LEVEL": "INFO"}, True),
        ({"VLLM_LOGGING_LEVEL": "DEBUG"}, False),
        ({"VLLM_SERVER_DEV_MODE": "1"}, False),
        ({"VLLM_PLUGINS": ""}, False),
        ({"PYTHONPATH": "/tmp"}, False),
        ({"LD_PRELOAD": "/tmp/x.so"}, False),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, True),
    ],
)
def test_environment_is_an_allow_list_too(env: dict[str, str], allowed: bool) -> None:
    assert (ea.env_refusal(env) is None) is allowed


def test_an_engine_does_not_start_in_an_image_that_sets_a_forbidden_variable() -> None:
    harmless = {"PATH": "/bin", "VLLM_TARGET_DEVICE": "cpu", "VLLM_USAGE_SOURCE": "image", "VLLM_LOGGING_LEVEL": "WARNING"}
    assert ea.inherited_env_refusal(harmless) is None
    for name in ("VLLM_SERVER_DEV_MODE", "CUSTOM_FASTAPI_APP", "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_ENABLE_COHERE_API"):
        assert name in str(ea.inherited_env_refusal(harmless | {name: "1"}))


@pytest.mark.parametrize("level", ["DEBUG", "debug", "NOTSET", ""])
def test_an_engine_does_not_start_in_an_image_that_logs_request_bodies(level: str) -> None:
    assert "VLLM_LOGGING_LEVEL" in str(ea.inherited_env_refusal({"VLLM_LOGGING_LEVEL": level}))


def test_the_fusionx_line_is_the_one_that_its_makers_document() -> None:
    transfer = KvTransfer(connector=Connector.FUSIONX, require_cache_salt=True, key_namespace="prod-glm53")
    assert render_kv_transfer(transfer) == FUSIONX_LINE


def test_switches_that_are_off_leave_no_trace_in_the_line() -> None:
    assert "salt" not in render_kv_transfer(KvTransfer(connector=Connector.FUSIONX))
    assert "namespace" not in render_kv_transfer(KvTransfer(connector=Connector.FUSIONX))


@pytest.mark.parametrize("connector", list(Connector))
def test_every_rendered_line_is_accepted_and_any_change_to_it_refused(connector: Connector) -> None:
    line = render_kv_transfer(KvTransfer(connector=connector))
    assert kv_transfer_refusal(line) is None
    assert kv_transfer_refusal(line.replace("kv_both", "kv_consumer")) is not None
    assert kv_transfer_refusal(line[:-1] + ',"kv_connector_module_path":"evil"}') is not None
    assert kv_transfer_refusal(line.replace("Connector", "ConnectorV1", 1)) is not None


@pytest.mark.parametrize("line", ["", "[]", "null", "{}", '{"kv_connector":"LMCacheConnectorV1"}', '{"kv_connector":1}'])
def test_no_other_connector_line_starts_an_engine(line: str) -> None:
    assert kv_transfer_refusal(line) is not None
    assert ea.launch_refusal([f"--kv-transfer-config={line}"]) is not None
