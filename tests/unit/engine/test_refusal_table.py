"""The refusal table: every row ends a start with status 78 and one sentence that names it, and no row is missing.

Each row goes through the engine's own `main`; one of each kind also through a process of its own, as in a pod.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

import pytest

from blockwarden_core import unsafe
from blockwarden_engine import __main__ as entry
from blockwarden_engine.refusal_table import Refused, refused, render_page

PAGE = Path(__file__).parents[3] / "docs/reference-refusals.md"
IDENTITY = {"BLOCKWARDEN_POLICY_UID": "p", "BLOCKWARDEN_POD_UID": "u"}
ROWS = [row for row in refused() if row.argument or row.variable]
ONE_OF_EACH = list({row.kind: row for row in ROWS}.values())
REQUIRED = {
    "--allowed-local-media-path", "--enable-log-outputs", "--enable-log-requests", "--enable-mm-embeds", "--enable-prompt-embeds",
    "--enable-scale-out", "--enable-sleep-mode", "--grpc", "--profiler-config", "--prefix-caching-hash-algo",
    "--scheduling-policy", "--speculative-config", "--tokens-only", "--tool-server", "--trust-request-chat-template",
    "--trust-request-mm-kwargs",
    "--mm-processor-cache-gb", "--ec-manager-config", "--ec-transfer-config", "--structured-outputs-config",
    "suffix decoding", "HiSparse", "a prefix hash of xxhash", "KV events to anybody",
    "CUSTOM_FASTAPI_*", "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_DEBUG_LOG_API_SERVER_RESPONSE", "VLLM_ENABLE_COHERE_API",
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", "VLLM_ENABLE_RESPONSES_API_STORE", "VLLM_LOGGING_LEVEL", "VLLM_MEDIA_CACHE",
    "VLLM_PLUGINS", "VLLM_SERVER_DEV_MODE", "VLLM_USE_RUST_FRONTEND",
    "ExampleConnector", "FlexKVConnectorV1", "HF3FSKVConnector", "HiSparseConnector", "LMCacheConnectorV1", "MoRIIOConnector",
    "MooncakeConnector", "MultiConnector", "NixlConnector", "OffloadingConnector", "SimpleCPUOffloadConnector",
    "an external KV cache", "an external encoder cache", "media input", "an encoder-decoder model", "a diffusion model",
}  # fmt: skip
"""What isolation's own analysis of vLLM found unsafe, written down apart from the table: a row that is lost is missed here."""

Start = Callable[[Refused], str]


def asked(row: Refused) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of an engine that asks for the row."""
    return ["--model=/models/one", *filter(None, [row.argument])], IDENTITY | dict([row.variable] if row.variable else [])


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Start:
    """Starts an engine with a row in this process, and returns what it says before it ends with status 78."""

    def started(row: Refused) -> str:
        arguments, environment = asked(row)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            entry.main(arguments)
        assert ended.value.code == entry.REFUSED_STATUS
        return capsys.readouterr().err

    return started


def check_sentence(row: Refused, said: str) -> None:
    assert said.count("\n") == 1, "one sentence"
    assert said.startswith("blockwarden-engine: ")
    assert row.name.removesuffix("*") in said, "it names what was asked for"
    assert row.why in said or row.name in ("VLLM_LOGGING_LEVEL", "VLLM_PLUGINS"), "it says why"
    assert said.rpartition(": ")[2].strip(), "it says what to do"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.argument or "=".join(row.variable))
def test_every_row_ends_a_start_with_one_sentence(start: Start, row: Refused) -> None:
    check_sentence(row, start(row))


@pytest.mark.parametrize("row", ONE_OF_EACH, ids=lambda row: row.kind)
def test_a_process_of_its_own_ends_the_same_way(row: Refused) -> None:
    arguments, environment = asked(row)
    done = subprocess.run(
        [sys.executable, "-m", "blockwarden_engine", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (entry.REFUSED_STATUS, "")
    check_sentence(row, done.stderr)


def test_no_row_is_missing() -> None:
    assert {row.name for row in refused()} >= REQUIRED


@pytest.mark.parametrize("lost", ["VLLM_SERVER_DEV_MODE", "CUSTOM_FASTAPI_*"])
def test_a_variable_whose_row_is_lost_would_start_an_engine(start: Start, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    row = next(row for row in ROWS if row.name == lost)
    monkeypatch.setattr(unsafe, "VARIABLES", MappingProxyType({n: why for n, why in unsafe.VARIABLES.items() if n != lost}))
    with pytest.raises(AssertionError):
        check_sentence(row, start(row))
    with pytest.raises(AssertionError):
        test_no_row_is_missing()


@pytest.mark.parametrize(("table", "lost"), [("FLAGS", "enable-log-requests"), ("CONNECTORS", "NixlConnector")])
def test_a_flag_or_connector_whose_row_is_lost_is_refused_without_its_reason(
    start: Start, monkeypatch: pytest.MonkeyPatch, table: str, lost: str
) -> None:
    row = next(row for row in ROWS if row.name.removeprefix("--") == lost)
    monkeypatch.setattr(unsafe, table, MappingProxyType({n: why for n, why in getattr(unsafe, table).items() if n != lost}))
    with pytest.raises(AssertionError, match=r"it says why|it names"):
        check_sentence(row, start(row))


def test_the_page_says_what_the_table_says() -> None:
    assert PAGE.read_text() == render_page(), "run `make generate`"
    assert all(f"{row.why} |" in PAGE.read_text() for row in refused())
