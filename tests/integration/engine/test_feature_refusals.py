"""What only vLLM's whole configuration shows ends a start as an argument does: one sentence, status 78, no weight read.

The models here have no weights, so an engine that went on would say something else. One process asks for all of them: importing
vLLM is most of the time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blockwarden_core import layout
from blockwarden_engine.support import FEATURES

VLLMS_OWN = {"a diffusion model": "vLLM refuses this configuration: Model Runner V1 does not support: diffusion models"}
"""On a CPU vLLM does not come as far as our own refusal."""
ASKED = {
    "an encoder-decoder model": {"is_encoder_decoder": True},
    "a diffusion model": {"canvas_length": 8},
}
START = """
import contextlib, io, json, sys
from blockwarden_engine.__main__ import main
for model in sys.argv[1:]:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            main([f"--model={model}", "--dtype=float32", "--max-model-len=64", "--enforce-eager", "--bind-host=127.0.0.1",
                  "--api-port=0", "--internal-port=0"])
        status = "it started"
    except SystemExit as ended:
        status = ended.code
    print("ANSWER" + json.dumps([status, said.getvalue().splitlines()[-1:]]))
"""


@pytest.fixture(scope="module")
def answers(tiny_model: Path, mounted_files: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Feature -> status and last line of a start with a model that has it."""
    models = []
    for number, change in enumerate(ASKED.values()):
        model = tmp_path_factory.mktemp("models") / f"m{number}"
        model.mkdir()
        for part in (part for part in tiny_model.iterdir() if part.suffix != ".safetensors"):
            (model / part.name).write_bytes(part.read_bytes())
        (model / "config.json").write_text(json.dumps(json.loads((model / "config.json").read_text()) | change))
        models.append(str(model))
    identity = {layout.POLICY_UID_ENV: mounted_files.policy_uid, layout.POD_UID_ENV: "pod-under-test"}
    environment = os.environ | identity | {layout.ROOT_ENV: str(mounted_files.root)}
    done = subprocess.run([sys.executable, "-c", START, *models], env=environment, capture_output=True, text=True, check=False)
    lines = [json.loads(part.splitlines()[0]) for part in done.stdout.split("ANSWER")[1:]]
    assert len(lines) == len(ASKED), done.stdout[-2000:] + done.stderr[-2000:]
    return dict(zip(ASKED, lines, strict=True))


@pytest.mark.parametrize("name", ASKED)
def test_a_model_that_is_not_kept_apart_ends_the_start(answers: dict[str, list[Any]], name: str) -> None:
    (feature,) = [feature for feature in FEATURES if feature.name == name]
    sentence = VLLMS_OWN.get(name, f"{name} is refused ({feature.why}): run without it")
    assert answers[name] == [78, [f"blockwarden-engine: {sentence}"]]
