"""A port on loopback that leads to a pod or Service, by `kubectl port-forward`: the same on every cluster."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localnode.processes import Process
from stack.kubectl import Cluster, CommandError


def start(cluster: Cluster, namespace: str, target: str, port: int, log: Path, *, local: int = 0) -> tuple[Process, str]:
    """A port-forward that outlives this process, and its base URL. `local` 0 lets the system choose the port.

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
        process.kill()
    raise CommandError(f"`{' '.join(command)}` does not listen: {log.read_text().strip()}")


def _spawn(command: list[str], log: Path) -> Process | None:
    """Starts it in a session of its own; a subprocess.Popen would want to see it end."""
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    log.touch()
    return Process.of(os.posix_spawnp(command[0], command, os.environ, file_actions=actions, setsid=True))


@contextmanager
def forwarded(cluster: Cluster, namespace: str, target: str, port: int) -> Iterator[str]:
    """A base URL that leads to `target` while the block runs."""
    log = cluster.kubeconfig.parent / f"port-forward-{os.getpid()}-{time.monotonic_ns()}.log"
    process, url = start(cluster, namespace, target, port, log)
    try:
        yield url
    finally:
        process.kill()
        log.unlink(missing_ok=True)
