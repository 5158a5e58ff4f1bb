"""A port on loopback that leads to a pod or Service, by `kubectl port-forward`: the same on every cluster."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from localnode.processes import Process
from stack.kubectl import Cluster, CommandError

_AGAIN: Final = 'for _ in $(seq 100000); do "$@"; sleep 1; done'
"""kubectl ends when the pod at the other end does; a given local port then leads to its successor."""


def start(cluster: Cluster, namespace: str, target: str, port: int, log: Path, *, local: int = 0) -> tuple[Process, str]:
    """A port-forward that outlives this process and the pod behind it, and its base URL. `local` 0: the system chooses the port.

    Raises:
        CommandError: it ended, or did not listen within 15 seconds.
    """
    command = [cluster.kubectl, f"--kubeconfig={cluster.kubeconfig}", "-n", namespace]
    command += ["port-forward", "--address=127.0.0.1", target, f"{local or ''}:{port}"]
    process = _spawn(command, log)
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and process is not None and Process.of(process.pid) == process:
        if found := re.search(r"Forwarding from 127\.0\.0\.1:(\d+)", log.read_text()):
            return process, f"http://127.0.0.1:{found[1]}"
        time.sleep(0.1)
    if process is not None:
        stop(process)
    raise CommandError(f"`{' '.join(command)}` does not listen: {log.read_text().strip()}")


def stop(process: Process) -> None:
    """Ends a port-forward: the loop, and the kubectl that it runs, which are one process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _spawn(command: list[str], log: Path) -> Process | None:
    """Starts it in a session of its own; a subprocess.Popen would want to see it end."""
    loop = ["sh", "-c", _AGAIN, "port-forward", *command]
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    log.touch()
    return Process.of(os.posix_spawnp(loop[0], loop, os.environ, file_actions=actions, setsid=True))


@contextmanager
def forwarded(cluster: Cluster, namespace: str, target: str, port: int) -> Iterator[str]:
    """A base URL that leads to `target` while the block runs."""
    log = cluster.kubeconfig.parent / f"port-forward-{os.getpid()}-{time.monotonic_ns()}.log"
    process, url = start(cluster, namespace, target, port, log)
    try:
        yield url
    finally:
        stop(process)
        log.unlink(missing_ok=True)
