"""The anchor: the one process that holds a node together, and whose end is the end of everything.

It makes new mount, network, PID, IPC and UTS namespaces and becomes PID 1 in them. Mounts, links and firewall rules
the node makes live in those namespaces only, and the kernel kills every process of a PID namespace whose first
process dies: whatever way a node ends, `kill -9` included, nothing of it is left on the host but a cgroup and a
directory. Daemons are started through a socket, so that they are the anchor's children and not the command line's.

Plain mode (no namespaces, no root) serves the control plane on loopback: there the parent-death signal of each
daemon takes the part of the PID namespace.

Runs as a script by its path, in any interpreter, so it imports nothing but the standard library.
"""

import argparse
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE, MS_SHARED = 2, 4, 4096, 16384, 1 << 18, 1 << 20
LIBC = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> None:
    """Raise what libc reported, naming the call."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str, flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    encoded = [text.encode() for text in (source, target, kind)]
    checked(LIBC.mount(*encoded, ctypes.c_ulong(flags), data.encode()), f"mount {kind or source} on {target}")


def private_tree(keep: Path, binds: dict[str, str]) -> None:
    """Give the node its own /run, /var/lib and /var/log, so that every daemon may use its default paths.

    `keep` (the cache with binaries and state) stays visible even where it lies under one of the covered directories.
    Propagation is cut from the host first and made shared again inside, as kubelet's volume mounts want it.
    """
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    kept = os.open(keep, os.O_PATH)
    sources = {target: os.open(source, os.O_PATH) for target, source in binds.items()}
    mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    for target, descriptor in sources.items():
        Path(target).mkdir(parents=True, exist_ok=True)
        mount(f"/proc/self/fd/{descriptor}", target, "", MS_BIND)
    if not keep.exists():
        keep.mkdir(parents=True)
        mount(f"/proc/self/fd/{kept}", str(keep), "", MS_BIND | MS_REC)
    mount("proc", "/proc", "proc")
    mount("none", "/", "", MS_REC | MS_SHARED)


def join_cgroups(files: list[str]) -> None:
    """Enter the node's cgroup in every hierarchy, before any child exists: all later processes inherit it."""
    for name in files:
        Path(name).write_text(str(os.getpid()))


class Daemons:
    """The children by name. A name that still runs is not started twice."""

    def __init__(self, plain: bool) -> None:
        self.pids: dict[str, int] = {}
        self.wrapper = ["/usr/bin/setpriv", "--pdeathsig", "KILL", "--"] if plain else []

    def start(self, name: str, argv: list[str], env: dict[str, str], log: str) -> int:
        """Spawn in a session of its own with the log as output; return the PID."""
        if name in self.pids:
            return self.pids[name]
        command = [*self.wrapper, *argv]
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        self.pids[name] = os.posix_spawn(command[0], command, env, file_actions=actions, setsid=True)
        return self.pids[name]

    def stop(self, name: str) -> None:
        """Ask one daemon to end; the reaper notices when it has."""
        if name in self.pids:
            os.kill(self.pids[name], signal.SIGTERM)

    def reap(self) -> None:
        """Bury dead children, the daemons' orphans included (the anchor is PID 1 or a subreaper)."""
        with contextlib.suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                self.pids = {name: known for name, known in self.pids.items() if known != pid}


def answer(daemons: Daemons, request: dict[str, Any]) -> dict[str, Any]:
    """One request of the command line: start, stop or list."""
    daemons.reap()
    if request["op"] == "start":
        return {"pid": daemons.start(request["name"], request["argv"], request["env"], request["log"])}
    if request["op"] == "stop":
        daemons.stop(request["name"])
    return {"daemons": daemons.pids}


def serve(listener: socket.socket, daemons: Daemons, owner: int | None) -> None:
    """Answer, and bury the dead twice a second, until the owner (if any) is gone."""
    watched: list[Any] = [listener] if owner is None else [listener, owner]
    while True:
        ready = select.select(watched, [], [], 0.5)[0]
        daemons.reap()
        if owner in ready:
            return
        if listener in ready:
            connection = listener.accept()[0]
            with connection, connection.makefile("rwb") as stream:
                try:
                    reply = answer(daemons, json.loads(stream.readline()))
                except (OSError, ValueError, KeyError) as error:
                    reply = {"error": str(error)}
                stream.write(json.dumps(reply).encode() + b"\n")


def settle(options: argparse.Namespace) -> None:
    """Become what the mode asks for: PID 1 of new namespaces, or a subreaper."""
    if options.plain:
        checked(LIBC.prctl(36, 1, 0, 0, 0), "prctl PR_SET_CHILD_SUBREAPER")
        return
    private_tree(Path(options.keep), dict(item.split("=", 1) for item in options.bind))
    socket.sethostname(options.hostname)


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The anchor's command line; it is started by supervisor.py only."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--state", required=True)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--owner", type=int)
    parser.add_argument("--keep")
    parser.add_argument("--hostname", default="node")
    parser.add_argument("--bind", action="append", default=[])
    parser.add_argument("--cgroup", action="append", default=[])
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    """Make the namespaces, report the anchor's PID on standard output, then serve until killed."""
    options = parsed(arguments)
    owner = os.pidfd_open(options.owner) if options.owner else None
    join_cgroups(options.cgroup)
    listener = socket.socket(socket.AF_UNIX)
    state = os.open(options.state, os.O_PATH)
    listener.bind(f"/proc/self/fd/{state}/anchor.sock")
    listener.listen(8)
    if not options.plain:
        flags = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
        checked(LIBC.unshare(flags), "unshare")
    child = os.fork()
    if child:
        sys.stdout.write(f"{child}\n")
        return
    os.setsid()
    settle(options)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    (Path(options.state) / "anchor.ready").touch()
    log = os.open(Path(options.state) / "anchor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for standard, descriptor in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(descriptor, standard)
    serve(listener, Daemons(options.plain), owner)


if __name__ == "__main__":
    main(sys.argv[1:])
