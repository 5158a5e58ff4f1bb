"""Mounted files: read at start, watched, and swapped in whole.

Kubernetes replaces a mounted volume by moving one symbolic link, so a file's inode and time tell that it is another one.
Each file keeps its last good content when the next one is broken; what is wrong with it is in `error` until it is mended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from blockwarden_core.document import Document
from blockwarden_core.errors import DocumentError

from .errors import StartError
from .logs import Log
from .material import DOCUMENTS, Material, assemble, read_document
from .metrics import Metrics

Fingerprint = tuple[int, int, int]


def observe_fingerprint(path: Path) -> Fingerprint | None:
    """What changes when another file is at `path`; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return (stat.st_ino, stat.st_mtime_ns, stat.st_size)


class Mounts:
    """The documents beneath one root."""

    def __init__(self, root: Path, *, policy_uid: str, log: Log, metrics: Metrics) -> None:
        """Reads every document once.

        Raises:
            StartError: one is missing or unusable.
        """
        self._root, self._policy_uid, self._log, self._metrics = root, policy_uid, log, metrics
        self._seen: dict[str, Fingerprint | None] = {}
        self._documents: dict[str, Document] = {}
        self._problems: dict[str, str] = {}
        self._listeners: list[Callable[[Material], None]] = []
        self._observe_changes()
        if self._problems:
            raise StartError(f"cannot start: {self.error}")
        self.material = assemble(self._documents)

    @property
    def error(self) -> str | None:
        """What is wrong with the files that are not in force, in one line."""
        return "; ".join(f"{path}: {problem}" for path, problem in sorted(self._problems.items())) or None

    def on_change(self, listener: Callable[[Material], None]) -> None:
        """Calls `listener` with the material in force, now and after each change."""
        self._listeners.append(listener)
        listener(self.material)

    def reload(self) -> Material:
        """Reads what changed since the last time, and gives the material in force."""
        changed = self._observe_changes()
        if changed:
            self.material = assemble(self._documents)
            for listener in self._listeners:
                listener(self.material)
        return self.material

    async def watch(self, seconds: float) -> None:
        """Reloads until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            self.reload()

    def _observe_changes(self) -> bool:
        """Whether any document was replaced by a usable one."""
        changed = False
        for path in DOCUMENTS:
            fingerprint = observe_fingerprint(self._root / path)
            if path in self._seen and self._seen[path] == fingerprint:
                continue
            self._seen[path] = fingerprint
            changed |= self._take(path)
        return changed

    def _take(self, path: str) -> bool:
        try:
            text = (self._root / path).read_text("utf-8")
            document = read_document(path, text, policy_uid=self._policy_uid)
        except (OSError, UnicodeDecodeError):
            return self._keep(path, "cannot be read")
        except DocumentError as error:
            return self._keep(path, str(error))
        self._problems.pop(path, None)
        changed = self._documents.get(path) != document
        self._documents[path] = document
        self._metrics.reloads.labels("good").inc()
        self._log.write("reload", file=path, result="good", changed=changed)
        return changed

    def _keep(self, path: str, problem: str) -> bool:
        self._problems[path] = problem
        self._metrics.reloads.labels("bad").inc()
        self._log.write("reload", file=path, result="bad", problem=problem)
        return False
