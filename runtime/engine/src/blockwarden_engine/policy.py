"""The mounted engine policy and engine keys: read, checked, watched.

Kubernetes swaps both mounts under a running engine at moments of its own, and in no fixed order. So each is read again as a
whole, a pair is tried whenever either file's bytes changed, and whatever cannot be used leaves the last good value in force and
a sentence in `error`. Used in the engine-core process (scheduler) and in the API process (admission). No vLLM, no torch.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from blockwarden_core import layout
from blockwarden_core.errors import DocumentError
from blockwarden_core.keys import EngineKeys
from blockwarden_core.policy import EnginePolicy, open_policy

POLL_SECONDS: Final = 0.5


def _accept(_policy: EnginePolicy) -> None:
    """The check of a process that has no pool: nothing more to refuse."""


class PolicyFile:
    """`policy/engine.json` and `engine-key/keys.json` beneath one root, and what of them is in force.

    `load` and `poll` belong to one thread; the attributes are immutable documents and may be read from any.

    Attributes:
        in_force: the last good policy; None before the first.
        error: why the files as they are now cannot be used; None when they are in force.
        errors: how many could not be used, by the name of the error.
    """

    def __init__(self, root: Path, policy_uid: str, *, check: Callable[[EnginePolicy], None] = _accept) -> None:
        """Args:
        root: the directory that holds the mounts, see `blockwarden_core.layout`.
        policy_uid: the TenantPolicy's UID; policies for another one are refused.
        check: raises DocumentError for a policy that this engine cannot enforce.
        """
        self._root, self._policy_uid, self._check = root, policy_uid, check
        self._keys: EngineKeys | None = None
        self._tried: tuple[bytes, bytes] | None = None
        self.in_force: EnginePolicy | None = None
        self.error: str | None = None
        self.errors: Counter[str] = Counter()

    @property
    def policy(self) -> EnginePolicy:
        """The last good policy.

        Raises:
            DocumentError: none has been read yet.
        """
        if self.in_force is None:
            raise DocumentError(f"{layout.ENGINE_POLICY}: not read yet")
        return self.in_force

    @property
    def keys(self) -> EngineKeys:
        """The last good engine keys.

        Raises:
            DocumentError: none have been read yet.
        """
        if self._keys is None:
            raise DocumentError(f"{layout.ENGINE_KEYS}: not read yet")
        return self._keys

    def load(self) -> EnginePolicy:
        """The policy as mounted now, taken into force together with its keys.

        Raises:
            DocumentError: a file is missing, unreadable, unsealed, stale, or refused by `check`.
        """
        try:
            return self._load(self._observe())
        except DocumentError as error:
            self._note(error)
            raise

    def poll(self) -> bool:
        """Whether another policy or other keys came into force since the last call; never raises for a bad file."""
        before = (self._keys, self.in_force)
        try:
            pair = self._observe()
            if pair != self._tried:
                self._load(pair)
        except DocumentError as error:
            self._note(error)
        return (self._keys, self.in_force) != before

    def _note(self, error: DocumentError) -> None:
        if str(error) != self.error:  # a file that stays unreadable is met at every poll
            self.errors[type(error).__name__] += 1
        self.error = str(error)

    def _load(self, pair: tuple[bytes, bytes]) -> EnginePolicy:
        self._tried = pair
        policy = self._apply(*pair)
        self.error = None
        return policy

    def _observe(self) -> tuple[bytes, bytes]:
        try:
            return self._read(layout.ENGINE_KEYS), self._read(layout.ENGINE_POLICY)
        except DocumentError:
            self._tried = None  # the same bytes, once they are readable again, count as news: they clear `error`
            raise

    def _read(self, relative: str) -> bytes:
        try:
            return (self._root / relative).read_bytes()
        except OSError as error:
            raise DocumentError(f"{relative}: cannot be read: {error.strerror}") from None

    def _apply(self, keys_text: bytes, policy_text: bytes) -> EnginePolicy:
        # Keys first: they may be newer than the policy, and tokens signed with a new key must be accepted at once.
        self._keys = EngineKeys.read(keys_text)
        policy = open_policy(policy_text, self._keys, policy_uid=self._policy_uid, in_force=self.in_force)
        if policy != self.in_force:
            self._check(policy)
            self.in_force = policy
        return policy


class PolicyWatcher(threading.Thread):
    """Polls a PolicyFile and calls `on_change` after each change.

    A daemon: it holds nothing that an engine process must give back.
    """

    def __init__(self, file: PolicyFile, on_change: Callable[[], None], *, interval: float = POLL_SECONDS) -> None:
        super().__init__(name="blockwarden-policy", daemon=True)
        self._file, self._on_change, self._interval = file, on_change, interval
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                if self._file.poll():
                    self._on_change()
            except Exception as error:  # a dead thread would keep an old policy in force without a word
                self._file.error = f"EnginePolicy: the watch failed with {type(error).__name__}"

    def stop(self) -> None:
        """Ends the thread after at most one interval."""
        self._stopped.set()
