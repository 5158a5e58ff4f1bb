"""A port on loopback that leads to a pod or Service, by `kubectl port-forward`: the same on every cluster."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stack.kubectl import Cluster, CommandError


def start(
    cluster: Cluster, namespace: str, target: str, port: int, log: Path, *, local: int = 0
) -> tuple[subprocess.Popen[bytes], str]:
    """A running port-forward and its base URL. `local` 0 lets the system choose the port.

    Raises:
        CommandError: it ended, or did not listen within 15 seconds.
    """
    command = [cluster.kubectl, "-n", namespace, "port-forward", "--address=127.0.0.1", target, f"{local or ''}:{port}"]
    with log.open("wb") as output:
        environment = os.environ | {"KUBECONFIG": str(cluster.kubeconfig)}
        process = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"Forwarding from 127\.0\.0\.1:(\d+)", log.read_text()):
            return process, f"http://127.0.0.1:{found[1]}"
        time.sleep(0.1)
    process.terminate()
    raise CommandError(f"`{' '.join(command)}` does not listen: {log.read_text().strip()}")


@contextmanager
def forwarded(cluster: Cluster, namespace: str, target: str, port: int) -> Iterator[str]:
    """A base URL that leads to `target` while the block runs."""
    log = cluster.kubeconfig.parent / f"port-forward-{os.getpid()}-{time.monotonic_ns()}.log"
    process, url = start(cluster, namespace, target, port, log)
    try:
        yield url
    finally:
        process.terminate()
        process.wait(timeout=10)
        log.unlink(missing_ok=True)
