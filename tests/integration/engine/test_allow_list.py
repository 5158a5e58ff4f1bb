"""The allow-list of engine arguments against vLLM's own parser: every name exists, every allowed value is read.

vLLM is imported in a process of its own, once: its import warns, and warnings are errors here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from blockwarden_core import engine_args, unsafe
from blockwarden_core.kv_transfer import Connector, KvTransfer, render_kv_transfer

ASK = """
import json, sys
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
def read(arguments):
    try:
        return {name: str(value) for name, value in vars(parser.parse_args(arguments)).items()}
    except SystemExit:
        return None
cases = json.load(sys.stdin)
options = {option: action.dest for action in parser._actions for option in action.option_strings}
answer = {"options": options, "read": [read(case) for case in cases], "connectors": list(KVConnectorFactory._registry)}
print("ANSWER" + json.dumps(answer))
"""
NAMES = [*engine_args.EXTRA_ARGS, *engine_args.FIELD_ARGS, *unsafe.FLAGS]
SAMPLES = {
    engine_args.COUNT: ("7",),
    engine_args.NUMBER: ("2", "0.5"),
    engine_args.WORD: ("auto",),
    engine_args.FRACTION: ("0.9", "1.0"),
    engine_args.SERVED_NAME: ("meta/llama-3.1:8b",),
    engine_args.PATH: ("/models/llama",),
    "[0-3]": ("0", "3"),
}
PATTERNS = {**engine_args.EXTRA_ARGS, **{name: pattern for name, (_, pattern) in engine_args.FIELD_ARGS.items()}}
VALUES = [
    f"--{name}={value}" if value else f"--{name}"
    for name, pattern in PATTERNS.items()
    if name not in ("kv-events-config", "kv-transfer-config")
    for value in SAMPLES.get(pattern, pattern.split("|"))
]
LINES = {connector: f"--kv-transfer-config={render_kv_transfer(KvTransfer(connector=connector))}" for connector in Connector}
EVENTS = f"--kv-events-config={unsafe.KV_EVENTS_CONFIG}"
OTHER_SPELLINGS = (("--max_num_seqs=7",), ("--max-num-seqs", "7"), ("--max-num-se=7",))


@pytest.fixture(scope="module")
def vllm() -> dict[str, Any]:
    """What vLLM's parser says: its options, what it reads in each case (by the case's text), its connectors."""
    cases: list[list[str]] = [*([value] for value in (*VALUES, *LINES.values(), EVENTS)), *map(list, OTHER_SPELLINGS)]
    done = subprocess.run([sys.executable, "-c", ASK], input=json.dumps(cases), capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.split("ANSWER", 1)[1])
    answer["read"] = {" ".join(case): read for case, read in zip(cases, answer["read"], strict=True)}
    return answer


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_of_the_lists_is_one_of_vllms(vllm: dict[str, Any], name: str) -> None:
    assert f"--{name}" in vllm["options"]


@pytest.mark.parametrize("argument", VALUES)
def test_vllm_reads_every_value_that_is_let_through(vllm: dict[str, Any], argument: str) -> None:
    flag, _, value = argument.partition("=")
    assert engine_args.launch_refusal([argument]) is None
    assert (value or str(not flag.startswith("--no-"))) in vllm["read"][argument][vllm["options"][flag]]


def test_vllm_reads_the_one_kv_event_configuration(vllm: dict[str, Any]) -> None:
    config = vllm["read"][EVENTS]["kv_events_config"]
    assert "enable_kv_cache_events=True" in config
    assert "endpoint='tcp://*:5557'" in config
    assert "replay_endpoint=None" in config


@pytest.mark.parametrize("connector", list(Connector))
def test_vllm_reads_every_rendered_connector(vllm: dict[str, Any], connector: Connector) -> None:
    assert f"kv_connector='{connector}Connector'" in vllm["read"][LINES[connector]]["kv_transfer_config"]
    assert (f"{connector}Connector" in vllm["connectors"]) is (connector is not Connector.FUSIONX)


def test_every_connector_of_vllms_is_in_the_lists(vllm: dict[str, Any]) -> None:
    known = {f"{connector}Connector" for connector in Connector if connector is not Connector.FUSIONX}
    assert set(vllm["connectors"]) == known | unsafe.CONNECTORS.keys()


@pytest.mark.parametrize("spelling", OTHER_SPELLINGS)
def test_the_spellings_that_are_refused_are_ones_that_vllm_would_read(vllm: dict[str, Any], spelling: tuple[str, ...]) -> None:
    """Why there is one spelling: each of these sets the flag, and a list of names would not see it."""
    assert vllm["read"][" ".join(spelling)]["max_num_seqs"] == "7"
    assert engine_args.launch_refusal(spelling) is not None
