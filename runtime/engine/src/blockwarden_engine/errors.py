"""Errors of blockwarden-engine.

    BlockwardenError
    ├── PolicyTooLarge (DocumentError)   the guarantees of an engine policy exceed the pool; the last good one stays
    ├── LedgerError                      the accounting of blocks would break; the engine must not go on
    │   ├── NotOwned                     a block was used, hit or freed by a trust domain that does not own it
    │   ├── WrongState                   a block is not in the state that the operation needs
    │   └── QuotaExceeded                more blocks were asked for than the tenant may take now, or a negative number
    ├── ScrubError                       zeroing of freed blocks is not confirmed; the engine must not go on
    │   ├── MissingAck                   a step with a scrub order came back without an acknowledgement
    │   └── MismatchedAck                an acknowledgement is of another epoch, count or number of ranks
    └── UnsupportedEngine                vLLM is configured in a way that isolation does not cover; the engine must not start

A request's own faults never raise in the scheduler: it is marked and ended with an error, and the engine goes on.
No message holds a prompt, a salt, a token or a key.
"""

from __future__ import annotations

from blockwarden_core.errors import BlockwardenError, DocumentError


class PolicyTooLarge(DocumentError):
    """The guarantees of an engine policy do not fit in this engine's pool."""


class LedgerError(BlockwardenError):
    """The accounting of blocks would break."""


class NotOwned(LedgerError):
    """A block is another trust domain's, or nobody's."""


class WrongState(LedgerError):
    """A block is not in the state that the operation needs."""


class QuotaExceeded(LedgerError):
    """A tenant asked for more blocks than it may take now, or for a negative number."""


class ScrubError(BlockwardenError):
    """Zeroing of freed blocks is not confirmed."""


class MissingAck(ScrubError):
    """A step with a scrub order came back without an acknowledgement from its workers."""


class MismatchedAck(ScrubError):
    """An acknowledgement is of another epoch, count of blocks or number of ranks than its order."""


class UnsupportedEngine(BlockwardenError):
    """vLLM is configured in a way that isolation does not cover."""
