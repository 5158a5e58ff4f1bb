"""The host's side of the anchor: start it, ask it to start daemons, enter its namespaces, end it."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localnode import commands, paths
from localnode.errors import CommandFailed
from localnode.processes import Process

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Daemon:
    """One daemon: what runs under which name, and its log."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Supervisor:
    """An anchor, by its state directory."""

    state: Path
    plain: bool = False

    @property
    def process(self) -> Process | None:
        """The living anchor."""
        return Process.load(self.state / "anchor.json")

    def start(self, *options: str, owner: int | None = None) -> Process:
        """Start an anchor and wait until its namespaces are settled."""
        for stale in ("anchor.sock", "anchor.ready"):
            (self.state / stale).unlink(missing_ok=True)
        mode = ["--plain"] if self.plain else ["--keep", str(paths.cache())]
        tied = ["--owner", str(owner)] if owner else []
        argv = [sys.executable, "-I", str(paths.PACKAGE / "anchor.py"), "--state", str(self.state), *mode, *tied, *options]
        process = Process.of(int(commands.run(argv)))
        if process is None:
            raise CommandFailed(f"the anchor ended at once: see {self.state / 'anchor.log'}")
        process.save(self.state / "anchor.json")
        commands.until((self.state / "anchor.ready").exists, f"the anchor of {self.state.name}", 5, pause=0.01)
        return process

    def ask(self, **request: Any) -> dict[str, Any]:
        """One request to the anchor; the socket is reached through a descriptor since its path may be too long for one."""
        directory = os.open(self.state, os.O_PATH)
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(10)
                client.connect(f"/proc/self/fd/{directory}/anchor.sock")
                with client.makefile("rwb") as stream:
                    stream.write(json.dumps(request).encode() + b"\n")
                    stream.flush()
                    reply: dict[str, Any] = json.loads(stream.readline())
        finally:
            os.close(directory)
        if "error" in reply:
            raise CommandFailed(f"the anchor could not {request['op']} {request.get('name', '')}: {reply['error']}")
        return reply

    def log(self, name: str) -> Path:
        """Where a daemon's output goes."""
        return paths.made(self.state / "logs") / f"{name}.log"

    def run_daemon(self, daemon: Daemon) -> None:
        """Start the daemon unless it runs."""
        env = {"PATH": SYSTEM_PATH, "HOME": "/root", **daemon.env}
        self.ask(op="start", name=daemon.name, argv=list(daemon.argv), env=env, log=str(self.log(daemon.name)))

    def running(self) -> list[str]:
        """Names of the daemons alive."""
        return sorted(self.ask(op="list")["daemons"]) if self.process else []

    def stop_daemon(self, name: str, timeout: float = 10) -> None:
        """End one daemon and wait for it."""
        self.ask(op="stop", name=name)
        commands.until(lambda: name not in self.running(), f"the end of {name}", timeout, pause=0.05)

    def inside(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` inside the node's namespaces."""
        process = self.process
        if process is None:
            raise CommandFailed(f"no node runs in {self.state}: start it with `python -m localnode up`")
        return ["nsenter", "--target", str(process.pid), "--mount", "--net", "--pid", "--ipc", "--uts", "--", *argv]

    def run(self, *argv: str, stdin: str | bytes | None = None) -> str:
        """Run a command inside to its end."""
        return commands.run(self.inside(argv), stdin=stdin)

    def popen(self, *argv: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a command inside, for streaming."""
        return subprocess.Popen(self.inside(argv), **options)
