"""The Debian packages the node is made of: install what is missing, start none of the services they bring.

Some of the packages start a service on installation. A policy file forbids that while apt-get runs; a policy the
machine had before is put back byte for byte.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from localnode.commands import stream
from localnode.errors import HostUnfit
from localnode.progress import say

# package -> a file that shows it is there; files and not dpkg, so that hand-installed tools count
NODE = {
    "containerd": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "nftables": "nft",
    "ipset": "ipset",
    "iproute2": "ip",
    "conntrack": "conntrack",
    "ebtables": "ebtables",
    "socat": "socat",
    "openssl": "openssl",
}
IMAGES = {"buildah": "buildah", "mmdebstrap": "mmdebstrap", "openssl": "openssl"}
POLICY = Path("/usr/sbin/policy-rc.d")


def missing(wanted: dict[str, str]) -> list[str]:
    """Packages none of whose program is on the path."""
    path = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
    return sorted(package for package, program in wanted.items() if shutil.which(program, path=path) is None)


@contextlib.contextmanager
def no_services(policy: Path = POLICY) -> Iterator[None]:
    """Forbid service starts for the time of one installation."""
    before = (policy.read_bytes(), policy.stat().st_mode) if policy.exists() else None
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        if before is None:
            policy.unlink()
        else:
            policy.write_bytes(before[0])
            policy.chmod(before[1])


def ensure(wanted: dict[str, str]) -> None:
    """Install the missing ones with apt-get, or say which they are."""
    lacking = missing(wanted)
    if not lacking:
        return
    names = " ".join(lacking)
    if shutil.which("apt-get") is None:
        raise HostUnfit(f"these packages are missing and there is no apt-get: install {names} yourself")
    if os.geteuid() != 0:
        raise HostUnfit(f"these packages are missing: run `apt-get install {names}` as root")
    say(f"installing Debian packages: {names}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "--option", "DPkg::Lock::Timeout=300", "install", "--yes", "--no-install-recommends", *lacking]
    with no_services():
        if subprocess.run(["apt-get", "install", "--simulate", *lacking], capture_output=True, check=False).returncode != 0:
            stream(["apt-get", "update"], env=env)
        stream(install, env=env)
