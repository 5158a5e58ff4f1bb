"""The cache's names: equal inputs are never built twice, and anything that changes a build changes the name."""

from pathlib import Path

import pytest

from localnode import binaries, paths, toolchain
from localnode.binaries import Group
from localnode.errors import CommandFailed


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    module = tmp_path / "demo"
    module.mkdir()
    (module / "go.mod").write_text("module demo\n\nrequire example.org/thing v1.2.3\n")
    (module / "go.sum").write_text("example.org/thing v1.2.3 h1:x=\n")
    return tmp_path


GROUP = Group("demo", {"thing": "example.org/thing"}, versioned="example.org/thing")


def test_the_hash_is_stable_and_ignores_files_the_build_does_not_read(tools: Path) -> None:
    before = binaries.content_hash(GROUP, tools)
    (tools / "demo" / "README.md").write_text("words")
    assert binaries.content_hash(GROUP, tools) == before


@pytest.mark.parametrize("name", ["go.mod", "go.sum", "main.go"])
def test_every_file_the_build_reads_is_in_the_hash(tools: Path, name: str) -> None:
    before = binaries.content_hash(GROUP, tools)
    path = tools / "demo" / name
    path.write_text((path.read_text() if path.exists() else "") + "// more\n")
    assert binaries.content_hash(GROUP, tools) != before


def test_programs_are_in_the_hash(tools: Path) -> None:
    other = Group("demo", {"thing": "example.org/other"}, versioned="example.org/thing")
    assert binaries.content_hash(GROUP, tools) != binaries.content_hash(other, tools)


def test_content_cannot_move_between_files_unnoticed(tools: Path) -> None:
    """Framing by length: the same bytes cut elsewhere are another input."""
    one = binaries.content_hash(GROUP, tools)
    text = (tools / "demo" / "go.sum").read_text()
    (tools / "demo" / "go.sum").write_text(text[:-1])
    (tools / "demo" / "x.go").write_text(text[-1:])
    assert binaries.content_hash(GROUP, tools) != one


def test_kubernetes_reports_the_pinned_version() -> None:
    go_mod = (paths.TOOLS / "kubernetes" / "go.mod").read_text()
    version = binaries.pinned(go_mod, "k8s.io/kubernetes")
    assert f"gitVersion={version}" in binaries.link_flags(binaries.KUBERNETES, go_mod)
    assert binaries.link_flags(binaries.ETCD, "") == "-s -w"


def test_every_staging_module_has_the_release_of_kubernetes() -> None:
    """k8s.io/kubernetes asks for its own libraries at v0.0.0; a replace of another release would link a mixture."""
    go_mod = (paths.TOOLS / "kubernetes" / "go.mod").read_text()
    release = binaries.pinned(go_mod, "k8s.io/kubernetes").removeprefix("v1.")
    replaced = [line.split()[-1] for line in go_mod.splitlines() if " => k8s.io/" in line]
    assert replaced
    assert set(replaced) == {f"v0.{release}"}


def test_an_unpinned_module_is_an_error() -> None:
    with pytest.raises(CommandFailed, match="not required"):
        binaries.pinned("module demo\n", "example.org/thing")


def test_every_group_has_a_committed_module() -> None:
    for group in binaries.ALL:
        assert (paths.TOOLS / group.name / "go.mod").exists()
        assert len(binaries.content_hash(group)) == 16


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("go version go1.26.8 linux/amd64", (1, 26)),
        ("go version go1.19 linux/amd64", (1, 19)),
        ("go version devel +abc", (0, 0)),
    ],
)
def test_go_versions(text: str, version: tuple[int, int]) -> None:
    assert toolchain.version_of(text) == version


def test_the_build_environment_ignores_what_would_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOFLAGS", "-tags=surprise")
    monkeypatch.setenv("GOTOOLCHAIN", "local")
    environment = toolchain.environment("/opt/go/bin/go")
    assert "GOFLAGS" not in environment
    assert environment["GOTOOLCHAIN"] == "auto"
    assert environment["CGO_ENABLED"] == "0"
    assert environment["PATH"].startswith("/opt/go/bin:")
