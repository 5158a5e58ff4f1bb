"""The base image of all our images: Debian bookworm, bootstrapped from the mirror this machine's apt uses.

No registry is asked. The mirror and apt's settings are read from this machine at run time and taken out of the image
again: it ends with Debian's public addresses.
"""

import hashlib
import os
import re
import tempfile
from pathlib import Path

from localnode import packages, paths
from localnode.buildah import Buildah
from localnode.commands import run, stream
from localnode.errors import CommandFailed, HostUnfit
from localnode.progress import say

SUITE = "bookworm"
INCLUDE = ("ca-certificates", "python3", "python3-venv", "libnuma1", "libgomp1", "libstdc++6")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
LATEST = "localhost/blockwarden-base:latest"
PUBLIC = "http://deb.debian.org"
RECIPE = "2"  # raise it when the steps below change what ends up in the image
TIDY = "rm -rf $1/var/lib/apt/lists/* $1/var/cache/apt/*.bin $1/var/log/*.log $1/var/log/apt $1/etc/apt/apt.conf.d/99mmdebstrap"
# A build mounts files over these; what is not there before would stay in a layer as an empty file. The bootstrap has put
# this machine's name and name servers into two of them.
PLACES = 'mkdir -p "$1/etc/uv" && for f in hosts hostname resolv.conf pip.conf uv/uv.toml; do : > "$1/etc/$f"; done'
DOCKERFILE = "FROM scratch\nADD rootfs.tar /\n"


def tag() -> str:
    """The tag by content: suite, packages and recipe."""
    text = "\n".join([SUITE, *sorted(INCLUDE), RECIPE])
    return f"localhost/blockwarden-base:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def mirrors(texts: list[str]) -> tuple[str | None, str | None]:
    """The archive's and the security archive's address, from sources.list and deb822 files.

    A suite that ends in -security marks the security archive; third parties' repositories do not carry Debian's suites.
    """
    archive = security = None
    for text in texts:
        for address, suites in _entries(text):
            for suite in suites:
                if suite.endswith("-security"):
                    security = security or address
                elif suite in {"bookworm", "trixie", "stable", "testing", "sid"}:
                    archive = archive or address
    return archive, security


def _entries(text: str) -> list[tuple[str, list[str]]]:
    """(address, suites) of every source in one file, of either format, commented ones left out."""
    text = re.sub(r"^\s*#.*\n?", "", text, flags=re.MULTILINE)
    found = [(m[1], [m[2]]) for m in re.finditer(r"^deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)\s+.*\bmain\b", text, re.MULTILINE)]
    for stanza in re.split(r"\n\s*\n", text):
        fields = dict(re.findall(r"^([A-Za-z-]+):\s*(.*(?:\n[ \t]+\S.*)*)", stanza, re.MULTILINE))
        if "URIs" in fields and "main" in fields.get("Components", "").split():
            found += [(address, fields.get("Suites", "").split()) for address in fields["URIs"].split()]
    return found


def sources(archive: str, security: str | None) -> str:
    """sources.list lines of the suite."""
    signed = f"[signed-by={KEYRING}]"
    lines = [f"deb {signed} {archive} {SUITE} main", f"deb {signed} {archive} {SUITE}-updates main"]
    if security:
        lines.append(f"deb {signed} {security} {SUITE}-security main")
    return "\n".join(lines) + "\n"


def apt_options(dump: str) -> list[str]:
    """This machine's network settings of apt, from `apt-config dump`, in the form mmdebstrap takes."""
    wanted = re.compile(r"Acquire::(http|https|Check-|Retries|ForceIPv4|AllowInsecure)[^ ]* \"[^\"]+\";")
    return [part for line in dump.splitlines() if wanted.fullmatch(line) for part in ("--aptopt", line.rstrip(";"))]


def ensure(buildah: Buildah) -> str:
    """The base image's tag; bootstraps it unless the storage has it."""
    if buildah.exists(tag()):
        return tag()
    packages.ensure({"mmdebstrap": "mmdebstrap"})
    if not Path(KEYRING).exists():
        raise HostUnfit(f"{KEYRING} is missing: install debian-archive-keyring")
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    archive, security = mirrors([file.read_text() for file in files if file.suffix in {".list", ".sources"} and file.is_file()])
    say(f"bootstrapping the base image (Debian {SUITE}), about half a minute")
    with tempfile.TemporaryDirectory(dir=paths.made(paths.cache() / "images")) as scratch:
        _bootstrap(Path(scratch), archive or f"{PUBLIC}/debian", security)
        buildah.build([tag(), LATEST], Path(scratch))
    return tag()


def _bootstrap(scratch: Path, archive: str, security: str | None) -> None:
    """rootfs.tar and its Dockerfile; in a mount namespace of its own, like every build."""
    (scratch / "Dockerfile").write_text(DOCKERFILE)
    (scratch / "public.list").write_text(sources(f"{PUBLIC}/debian", f"{PUBLIC}/debian-security"))
    (scratch / "sources.list").write_text(sources(archive, security))
    hooks = [f'cp {scratch}/public.list "$1/etc/apt/sources.list"', "rm -f $1/etc/apt/sources.list.d/*", TIDY, PLACES]
    options = ["--variant=minbase", "--mode=root", f"--include={','.join(INCLUDE)}", *apt_options(run(["apt-config", "dump"]))]
    options += [f"--customize-hook={hook}" for hook in hooks]
    try:
        stream(
            ["unshare", "--mount", "mmdebstrap", *options, SUITE, str(scratch / "rootfs.tar"), str(scratch / "sources.list")],
            env={**os.environ, "TMPDIR": str(scratch)},
        )
    except CommandFailed as error:
        raise CommandFailed(
            f"bootstrapping Debian {SUITE} failed, see whether apt's mirror carries that suite: {error}"
        ) from None
