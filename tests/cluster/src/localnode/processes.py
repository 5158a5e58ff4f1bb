"""Telling processes apart by PID and start time: a PID alone may have been given to somebody else meanwhile."""

import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """One process, as remembered in a state file."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "Process | None":
        """The process that has this PID now; None when there is none, or only its corpse."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        return parse_stat(text)

    @classmethod
    def load(cls, path: Path) -> "Process | None":
        """The process a state file remembers, provided it is still that one and alive."""
        try:
            kept = json.loads(path.read_text())
            known = cls(int(kept["pid"]), int(kept["started"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return known if cls.of(known.pid) == known else None

    def save(self, path: Path) -> None:
        """Remember it; written beside and renamed, so that a crash leaves the old file or the new one."""
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps({"pid": self.pid, "started": self.started}))
        draft.rename(path)

    def kill(self, timeout: float = 10) -> None:
        """SIGKILL, then wait until it is gone, and for a moment until whoever is its parent has buried it."""
        deadline = time.monotonic() + timeout
        while Process.of(self.pid) == self and time.monotonic() < deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.02)
        patience = time.monotonic() + 2
        while Process.of(self.pid) is None and Path(f"/proc/{self.pid}").exists() and time.monotonic() < patience:
            bury(self.pid)
            time.sleep(0.02)


def parse_stat(text: str) -> Process | None:
    """PID and start time from /proc/PID/stat; the command's name may hold spaces and brackets. A zombie is None."""
    pid = int(text.split(" ", 1)[0])
    fields = text.rsplit(")", 1)[1].split()
    return None if fields[0] in "ZX" else Process(pid, int(fields[19]))


def bury(pid: int) -> None:
    """Reap the process if it was our child."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
