"""Running the tools the node is made of, and waiting for what they start."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from localnode.errors import CommandFailed, NotReady
from localnode.progress import say


def run(argv: Sequence[str], *, env: Mapping[str, str] | None = None, stdin: str | bytes | None = None) -> str:
    """Run to the end and return standard output; failing, raise with the end of what it said."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    try:
        done = subprocess.run(list(argv), env=env, input=data, capture_output=True, check=False)
    except FileNotFoundError:
        raise CommandFailed(f"{argv[0]} is not there: run `python -m localnode build`") from None
    if done.returncode != 0:
        tail = (done.stderr or done.stdout).decode(errors="replace").strip()[-1500:]
        raise CommandFailed(f"`{' '.join(argv[:8])}` ended with {done.returncode}: {tail}")
    return done.stdout.decode(errors="replace")


def stream(argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, every: float = 5) -> None:
    """Run a long tool and show its newest line every few seconds, with the count of lines so far."""
    with subprocess.Popen(
        list(argv), env=env, cwd=cwd, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        tail: list[str] = []
        shown = time.monotonic()
        for count, line in enumerate(process.stdout, 1):
            tail = [*tail[-30:], line.rstrip()]
            if time.monotonic() - shown >= every:
                say(f"  {count} lines, now {line.strip()[:110]}")
                shown = time.monotonic()
    if process.returncode != 0:
        raise CommandFailed(f"`{' '.join(argv[:6])}` ended with {process.returncode}:\n" + "\n".join(tail))


def until(ready: Callable[[], bool], what: str, timeout: float, pause: float = 0.1) -> None:
    """Poll until ready; the error names what was waited for."""
    deadline = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > deadline:
            raise NotReady(f"{what} was not ready after {timeout:.0f} s")
        time.sleep(pause)
