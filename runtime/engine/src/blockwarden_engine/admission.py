"""Who may run a request here: the token in its `cache_salt` against the keys and the policy in force.

Asked three times for each request, because each place sees what the one before cannot: the middleware (a proper status,
streams included, before the first byte), vLLM's input processing (whatever route led there) and the engine core's
pre-processing (whatever process sent it). None of them is the scheduler: raising there would end the engine for everybody.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from blockwarden_core.policy import EnginePolicy, TenantShare
from blockwarden_core.salt import Token, verify_token

from .errors import NeverFits
from .policy import PolicyFile, PolicyWatcher
from .quotas import plan_quotas
from .refusals import Refusals
from .settings import observe_identity

length_is_free: Final[ContextVar[bool]] = ContextVar("length_is_free", default=False)
"""Whether the client left the length of the answer open, so that it may be cut to what its tenant can hold. Set by the
middleware, read where the request is about to enter the engine."""

admitted_token: Final[ContextVar[Token]] = ContextVar("admitted_token")
"""The token of the request that the engine core is taking in. Set before vLLM makes its Request, read where that one's grammar is
about to be compiled."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The KV cache that requests must fit into.

    Attributes:
        block_size: tokens per block.
        pool: blocks, the null block not counted.
        max_model_len: the longest prompt and answer together, in tokens.
    """

    block_size: int
    pool: int
    max_model_len: int

    def blocks(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens of one request, in a model with one group of layers (others need more)."""
        return -(-min(tokens, self.max_model_len) // self.block_size)


def carry_token(request: Any, text: object) -> None:
    """Leaves with vLLM's Request the token that it was admitted by. Its `cache_salt` is the token's salt from there on, so that
    block hashes, and whatever is published of them, hold neither generation nor tag."""
    request.salt_token = text


def carried_token(request: Any) -> object:
    """What `carry_token` left with a request; None for one that never passed there."""
    return getattr(request, "salt_token", None)


class Admission:
    """Verifies tokens under the keys and the policy that are in force in this process.

    Attributes:
        shape: the KV cache of this engine; None until it is allocated.
        refusals: what was refused in this process.
    """

    def __init__(self, root: Path, policy_uid: str) -> None:
        """Args:
        root: the directory of the mounted files.
        policy_uid: the TenantPolicy's UID, part of every tag.

        Raises:
            DocumentError: the mounted policy or keys cannot be used.
        """
        self.shape: CacheShape | None = None
        self.refusals = Refusals()
        self._policy_uid = policy_uid
        self._file = PolicyFile(root, policy_uid, check=self._check)
        self._file.load()

    def watch(self) -> None:
        """Follows the mounted files from now on."""
        PolicyWatcher(self._file, on_change=lambda: None).start()

    @property
    def policy(self) -> EnginePolicy:
        """The policy in force."""
        return self._file.policy

    @property
    def reload_error(self) -> str | None:
        """Why the mounted files as they are now cannot be used, if they cannot."""
        return self._file.error

    def admit(self, salt: object) -> tuple[Token, TenantShare]:
        """The verified token in a `cache_salt`, and the share that pays for its request.

        Raises:
            TokenError: unsigned, forged, of an unknown tenant, or of a retired generation.
        """
        policy = self.policy
        token = verify_token(salt, engine_keys=self._file.keys.accepted, policy_uid=self._policy_uid)
        return token, policy.admit(token)

    def longest_answer(self, share: TenantShare, prompt: int, wanted: int) -> int:
        """How many tokens the answer to a prompt of `prompt` tokens may have, of `wanted`.

        Raises:
            NeverFits: the prompt, or an answer whose length the client insists on, can never fit into the tenant's quota.
        """
        if self.shape is None:
            return wanted
        quota = plan_quotas(self.policy, self.shape.pool).get(share.name)
        room = quota.capacity if quota else 0  # de-registered since `admit`
        needed = self.shape.blocks(prompt + wanted)
        if needed <= room:
            return wanted
        fitting = room * self.shape.block_size - prompt
        if fitting < 1 or not length_is_free.get():
            raise NeverFits(
                f"the request may need {needed} KV blocks of {self.shape.block_size} tokens and its tenant can hold {room}: "
                "shorten the prompt or lower max_tokens"
            )
        return fitting

    def _check(self, policy: EnginePolicy) -> None:
        if self.shape is not None:
            plan_quotas(policy, self.shape.pool)


_lock = threading.Lock()


def process_admission() -> Admission:
    """This process's admission, made on first use; its files are watched from then on.

    Raises:
        DocumentError: the mounted policy or keys cannot be used.
        LaunchRefused: the process was not started by the launcher.
    """
    with _lock:
        return _make()


@cache
def _make() -> Admission:
    identity = observe_identity()
    admission = Admission(identity.root, identity.policy_uid)
    admission.watch()
    return admission
