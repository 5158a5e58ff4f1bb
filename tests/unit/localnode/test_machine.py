"""What is read from the machine: cgroups, apt's sources, pip's and uv's settings; and what is left as it was."""

import tomllib
from configparser import RawConfigParser
from pathlib import Path

import pytest

from localnode import baseimage, buildconfig, cgroups, node, packages
from localnode.errors import HostUnfit, TargetUnclear
from localnode.node import Node
from localnode.target import KindTarget, RegistryTarget, local_node, resolve

MOUNTINFO = """\
25 30 0:23 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755
26 25 0:24 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw
27 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:11 - cgroup cgroup rw,cpu,cpuacct
28 30 8:1 / /home rw shared:1 - ext4 /dev/sda1 rw
"""
LIST = """\
# deb http://commented.example/debian bookworm main
deb [signed-by=/usr/share/keyrings/k.gpg] http://mirror.example/debian bookworm main contrib
deb http://security.example/debian-security bookworm-security main
deb https://vendor.example/repo nodistro main
"""
DEB822 = """\
Types: deb
# http://commented.example
URIs: http://mirror.example/debian
Suites: trixie trixie-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://security.example/debian-security
Suites: trixie-security
Components: main
"""


def test_every_hierarchy_is_found() -> None:
    assert cgroups.hierarchies(MOUNTINFO) == [Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup/cpu,cpuacct")]


@pytest.mark.parametrize("text", [LIST, DEB822])
def test_mirrors_are_read_from_both_formats(text: str) -> None:
    assert baseimage.mirrors([text]) == ("http://mirror.example/debian", "http://security.example/debian-security")


def test_without_sources_there_is_no_mirror() -> None:
    assert baseimage.mirrors(["", "# deb http://commented.example/debian bookworm main\n"]) == (None, None)


def test_apt_options_carry_the_network_settings_only() -> None:
    kept = 'Acquire::http::Proxy "http://proxy.example:3128";'
    dump = f'APT::Architecture "amd64";\n{kept}\nAcquire::Languages "none";\nAcquire::http "";\n'
    assert baseimage.apt_options(dump) == ["--aptopt", 'Acquire::http::Proxy "http://proxy.example:3128"']


def test_pip_settings_merge_as_pip_does() -> None:
    files = [
        "[global]\nindex-url = https://one.example/simple\ntimeout = 5\n",
        "[install]\nindex-url = https://two.example/simple\n",
    ]
    merged = buildconfig.pip_settings(
        {"PIP_TIMEOUT": "9", "PIP_FIND_LINKS": "/a /b", "PIP_CONFIG_FILE": "/x", "PATH": "/bin"}, files
    )
    assert merged == {"index-url": "https://two.example/simple", "timeout": "9", "find-links": "/a /b"}


def test_pip_conf_reads_back_with_the_builds_certificates() -> None:
    parser = RawConfigParser()
    parser.read_string(buildconfig.pip_conf({"find-links": "/a /b", "cert": "/elsewhere.pem", "cache-dir": "/c", "timeout": "9"}))
    found = dict(parser.items("global"))
    assert found["find-links"].split() == ["/a", "/b"]
    assert found["cert"] == str(buildconfig.CERTIFICATES)
    assert found["timeout"] == "9"
    assert "cache-dir" not in found


def test_uv_takes_pips_indexes_unless_it_has_its_own() -> None:
    settings = {"index-url": "https://pip.example/simple", "find-links": "/wheels"}
    from_pip = tomllib.loads(buildconfig.uv_toml(settings, {}))
    assert from_pip["index"] == [{"url": "https://pip.example/simple", "default": True}]
    assert from_pip["find-links"] == ["/wheels"]
    own = tomllib.loads(
        buildconfig.uv_toml(settings, {"UV_DEFAULT_INDEX": "https://uv.example", "UV_INDEX": "name=https://more.example"})
    )
    assert own["index"] == [{"url": "https://more.example"}, {"url": "https://uv.example", "default": True}]


def test_no_path_of_the_machine_reaches_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels, scratch = tmp_path / "wheels", tmp_path / "scratch"
    wheels.mkdir()
    scratch.mkdir()
    monkeypatch.setattr(buildconfig, "host_settings", lambda: {"find-links": f"{wheels} https://links.example"})
    monkeypatch.setenv("UV_FIND_LINKS", str(wheels))
    found = buildconfig.mounts(scratch)
    assert buildconfig.Mount(wheels, "/run/find-links/0") in found
    for name in ("pip.conf", "uv.toml"):
        text = (scratch / name).read_text()
        assert "/run/find-links/0" in text
        assert str(tmp_path) not in text
    assert not [mount for mount in found if str(tmp_path) in mount.target]


@pytest.mark.parametrize("before", [None, b"#!/bin/sh\nexit 0\n"])
def test_the_service_policy_is_put_back(tmp_path: Path, before: bytes | None) -> None:
    policy = tmp_path / "policy-rc.d"
    if before is not None:
        policy.write_bytes(before)
        policy.chmod(0o700)
    with pytest.raises(KeyError), packages.no_services(policy):
        assert b"exit 101" in policy.read_bytes()
        raise KeyError
    assert (policy.read_bytes() if policy.exists() else None) == before
    assert before is None or policy.stat().st_mode & 0o777 == 0o700


def test_missing_packages_are_told_by_their_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert packages.missing({"shell": "no-such-program-anywhere", "mount": "mount"})[-1] == "shell"


def test_an_unfit_machine_is_told_what_to_change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(HostUnfit, match="run as root"):
        node.check_host()
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(node, "FREE_TO_RUN", 1 << 62)
    with pytest.raises(HostUnfit, match=r"needs .* GiB under .* are free: make room or move XDG_CACHE_HOME"):
        node.check_host()


def test_missing_packages_without_apt_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(HostUnfit, match="no apt-get: install containerd yourself"):
        packages.ensure({"containerd": "containerd"})


def test_missing_packages_without_root_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(packages, "missing", lambda _: ["containerd"])
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/usr/bin/apt-get")
    with pytest.raises(HostUnfit, match="`apt-get install containerd` as root"):
        packages.ensure({"containerd": "containerd"})


def test_a_foreign_kubeconfig_needs_a_way_for_images() -> None:
    with pytest.raises(TargetUnclear, match="IMAGE_REGISTRY"):
        resolve(environment={"KUBECONFIG": "/k"})
    assert resolve(environment={"KUBECONFIG": "/k", "IMAGE_REGISTRY": "r.example/x"}) == RegistryTarget(Path("/k"), "r.example/x")
    assert resolve(environment={"KUBECONFIG": "/k", "KIND_CLUSTER": "c"}) == KindTarget(Path("/k"), "c")


def test_the_local_node_is_meant_by_no_kubeconfig_and_by_a_local_nodes() -> None:
    for environment in ({}, {"KUBECONFIG": ""}, {"KUBECONFIG": str(Node("bw-demo").kubeconfig)}):
        node = local_node("bw-other", environment)
        assert node is not None
        assert node.name == "bw-other"
    assert local_node("bw-other", {"KUBECONFIG": "/root/.kube/config"}) is None


@pytest.mark.parametrize("more", [{"IMAGE_REGISTRY": "r.example/x"}, {"KIND_CLUSTER": "c"}])
def test_a_local_nodes_kubeconfig_with_a_way_for_images_is_taken_as_given(more: dict[str, str]) -> None:
    assert local_node("bw-other", {"KUBECONFIG": str(Node("bw-demo").kubeconfig)} | more) is None
