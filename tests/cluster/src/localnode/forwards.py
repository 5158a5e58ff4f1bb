"""Loopback ports of the host that lead into a node, and the record that keeps a node's ports the same over restarts."""

import json
import os
import sys
from pathlib import Path

from localnode import paths
from localnode.errors import NotReady
from localnode.processes import Process


class Forwards:
    """The forwarders of one node. Their state is in the node's; the port numbers outlive it."""

    def __init__(self, name: str) -> None:
        self.directory = paths.node_state(name) / "forwards"
        self.record = paths.cache() / "ports" / f"{name}.json"

    def open(self, purpose: str, anchor: Process, host: str, target: int, port: int = 0) -> int:
        """Forward a port to host:target inside; 0 means the one this purpose had before, or else any. Returns the port."""
        running = Process.load(self.directory / f"{purpose}.json")
        if running is not None and purpose in self._ports():
            return self._ports()[purpose]
        wanted = port or self._ports().get(purpose, 0)
        pid, got = self._spawn(anchor, host, target, wanted)
        if got == 0 and not port:
            pid, got = self._spawn(anchor, host, target, 0)
        started = Process.of(pid)
        if got == 0 or started is None:
            raise NotReady(f"127.0.0.1:{wanted} could not be listened on: end who holds it or choose another port")
        paths.made(self.directory)
        started.save(self.directory / f"{purpose}.json")
        paths.made(self.record.parent)
        self.record.write_text(json.dumps({**self._ports(), purpose: got}))
        return got

    def _spawn(self, anchor: Process, host: str, target: int, port: int) -> tuple[int, int]:
        """Start one forwarder; its PID, and the port it reports: 0 when it could not listen. It is meant to outlive us."""
        argv = [sys.executable, "-I", str(paths.PACKAGE / "forwarder.py"), "--anchor", str(anchor.pid), "--host", host]
        argv += ["--target", str(target), "--port", str(port)]
        log = paths.made(self.directory.parent / "logs") / "forwarder.log"
        reading, writing = os.pipe()
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, writing, 1),
            (os.POSIX_SPAWN_OPEN, 2, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
        ]
        pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=actions, setsid=True)
        os.close(writing)
        with os.fdopen(reading) as said:
            line = said.readline().strip()
        if not line:
            os.waitpid(pid, 0)
        return pid, int(line or 0)

    def _ports(self) -> dict[str, int]:
        """The remembered ports by purpose."""
        try:
            ports: dict[str, int] = json.loads(self.record.read_text())
        except (OSError, ValueError):
            return {}
        return ports

    def close(self, purpose: str) -> None:
        """End one forwarder; its port stays remembered."""
        path = self.directory / f"{purpose}.json"
        process = Process.load(path)
        if process is not None:
            process.kill()
        path.unlink(missing_ok=True)

    def close_all(self) -> None:
        """End all forwarders of the node."""
        if self.directory.is_dir():
            for path in sorted(self.directory.glob("*.json")):
                self.close(Path(path).stem)
