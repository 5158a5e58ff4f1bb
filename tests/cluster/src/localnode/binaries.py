"""The node's programs, built from the Go module proxy at the versions of tests/cluster/tools/*/go.mod.

Each group is a module of its own since their dependencies clash. The output directory is named by the hash of what the
build depends on (go.mod, go.sum, sources, flags): present means current, and nothing is ever rebuilt in place.
"""

import hashlib
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from localnode import paths, toolchain
from localnode.errors import CommandFailed, HostUnfit
from localnode.progress import say

FREE_FOR_BUILD = 12 << 30  # measured: 11 GB, nearly all of it in the caches of Go
CNI = "github.com/containernetworking/plugins/plugins"


@dataclass(frozen=True)
class Group:
    """One tools module: the programs it gives and the packages they are built from."""

    name: str
    programs: dict[str, str]
    versioned: str = ""


KUBERNETES = Group(
    "kubernetes",
    {
        name: f"k8s.io/kubernetes/cmd/{name}"
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
    },
    versioned="k8s.io/kubernetes",
)
ETCD = Group("etcd", {"etcd": "go.etcd.io/etcd/server/v3"})
PLUGINS = Group(
    "cni",
    {p.rsplit("/", 1)[1]: f"{CNI}/{p}" for p in ("main/bridge", "main/loopback", "ipam/host-local", "meta/portmap")},
)
POLICY = Group("kuberouter", {"kube-router": "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"})
DNS = Group("coredns", {"coredns": "."})
PAUSE = Group("pause", {"pause": "."})
HELM = Group("helm", {"helm": "helm.sh/helm/v4/cmd/helm"})
CONTROL_PLANE = (KUBERNETES, ETCD)
ALL = (KUBERNETES, ETCD, PLUGINS, POLICY, DNS, PAUSE, HELM)


def pinned(go_mod: str, module: str) -> str:
    """The version a go.mod requires of a module."""
    found = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", go_mod, re.MULTILINE)
    if found is None:
        raise CommandFailed(f"{module} is not required in go.mod: the tools module is broken")
    return found[1]


def link_flags(group: Group, go_mod: str) -> str:
    """Linker flags: stripped, and for Kubernetes the version it reports, which clients compare."""
    flags = "-s -w"
    if group.versioned:
        version = pinned(go_mod, group.versioned)
        major, minor = version.removeprefix("v").split(".")[:2]
        package = "k8s.io/component-base/version"
        for key, value in {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}.items():
            flags += f" -X {package}.{key}={value}"
    return flags


def content_hash(group: Group, tools: Path = paths.TOOLS) -> str:
    """Name of the output directory: sixteen hex digits over everything the build reads, framed by length."""
    digest = hashlib.sha256()
    module = tools / group.name
    parts = [link_flags(group, (module / "go.mod").read_text()).encode(), repr(sorted(group.programs.items())).encode()]
    for name in sorted(path.name for path in module.iterdir() if path.suffix in {".mod", ".sum", ".go"}):
        parts += [name.encode(), (module / name).read_bytes()]
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


def directory(group: Group) -> Path:
    """Where the group's programs are, or will be."""
    return paths.cache() / "bin" / content_hash(group)


def program(name: str) -> str:
    """Path of one program."""
    for group in ALL:
        if name in group.programs:
            return str(directory(group) / name)
    raise KeyError(name)


def ensure(groups: tuple[Group, ...] = ALL) -> None:
    """Build what is not there yet."""
    lacking = [group for group in groups if not directory(group).is_dir()]
    if not lacking:
        return
    free = shutil.disk_usage(paths.made(paths.cache())).free
    if free < FREE_FOR_BUILD:
        need = f"{FREE_FOR_BUILD / 2**30:.0f} GiB, {free / 2**30:.1f} GiB are free under {paths.cache()}"
        raise HostUnfit(f"building needs {need}: make room or move XDG_CACHE_HOME")
    go = toolchain.find()
    say(f"building {', '.join(group.name for group in lacking)} with {go}; once per machine: a quarter of an hour on two cores")
    for group in lacking:
        build(group, go)


def build(group: Group, go: str) -> None:
    """Build one group beside its place and move it there when whole."""
    module = paths.TOOLS / group.name
    target = directory(group)
    draft = paths.made(target.with_name(f"{target.name}.{os.getpid()}.draft"))
    begun = time.monotonic()
    flags = [
        "-v",
        "-mod=readonly",
        "-trimpath",
        "-buildvcs=false",
        "-ldflags",
        link_flags(group, (module / "go.mod").read_text()),
    ]
    single = next(iter(group.programs)) if len(group.programs) == 1 else ""
    argv = [go, "build", *flags, "-o", str(draft / single) if single else f"{draft}/", *group.programs.values()]
    _compile(group, argv, module, toolchain.environment(go))
    if not target.is_dir():
        draft.rename(target)
    shutil.rmtree(draft, ignore_errors=True)
    say(f"{group.name} built in {time.monotonic() - begun:.0f} s")


def _compile(group: Group, argv: list[str], module: Path, env: dict[str, str]) -> None:
    """Run go, showing the package it finished last and how many so far."""
    with subprocess.Popen(argv, cwd=module, env=env, text=True, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        tail: list[str] = []
        shown, count = time.monotonic(), 0
        for line in process.stderr:
            tail = [*tail[-40:], line]
            count += not line.startswith("go: ")
            if time.monotonic() - shown >= 5:
                say(f"  {group.name}: {count} packages, now {line.strip()[:90]}")
                shown = time.monotonic()
    if process.returncode != 0:
        raise CommandFailed(f"building {group.name} failed:\n{''.join(tail)}")
