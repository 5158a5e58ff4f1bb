"""Errors of blockwarden-engine.

    BlockwardenError
    ├── PolicyTooLarge (DocumentError)   the guarantees of an engine policy exceed the pool; the last good one stays
    ├── LedgerError                      the accounting of blocks would break; the engine must not go on
    │   ├── NotOwned                     a block was used, hit or freed by a trust domain that does not own it
    │   ├── WrongState                   a block is not in the state that the operation needs
    │   └── QuotaExceeded                more blocks were asked for than the tenant may take now, or a negative number
    ├── ScrubError                       zeroing of freed blocks is not confirmed; the engine must not go on
    │   ├── MissingAck                   a step with a scrub order came back without an acknowledgement
    │   ├── MismatchedAck                an acknowledgement is of another epoch, count or number of ranks
    │   ├── ScrubFailed                  a worker could not zero its blocks, or read back something else than zero
    │   └── BootTestFailed               the engine's own blocks did not come back zero when it started
    ├── RequestRefused                   a request that this engine must not run, though its token is good; `code` for the wire
    │   ├── NeverFits                    it needs more blocks than its tenant's limit
    │   ├── MediaRefused                 it carries media, whose caches are not keyed by scope
    │   └── BodyRefused                  its HTTP body must not reach vLLM; `status` for the wire as well
    ├── LaunchRefused                    an argument, variable or mounted file with which an engine must not start
    └── UnsupportedEngine                vLLM is configured in a way that isolation does not cover; the engine must not start
        └── HookError                    vLLM's code is not the recorded one, or the plugin is not in it
            ├── UnknownVersion           another vLLM than the one the plugin was written for
            ├── ChangedHook              a function that the plugin replaces or relies on has other source, or is gone
            └── PluginMissing            a process of the engine runs without the plugin

A request's own faults never raise in the scheduler: it is marked and ended with an error, and the engine goes on.
No message holds a prompt, a salt, a token or a key.
"""

from __future__ import annotations

from blockwarden_core.errors import BlockwardenError, DocumentError
from blockwarden_core.refusal import NEVER_FITS


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


class ScrubFailed(ScrubError):
    """A worker could not zero blocks, or read them back as something else than zero."""


class BootTestFailed(ScrubError):
    """The engine's own blocks did not come back zero when it started."""


class RequestRefused(BlockwardenError):
    """This engine must not run the request; the message is for the client."""

    code: str = "request_refused"


class NeverFits(RequestRefused):
    """The request needs more blocks than its tenant may ever hold here."""

    code = NEVER_FITS


class MediaRefused(RequestRefused):
    """The request carries media; encoder and processor caches are not keyed by scope."""

    code = "media_refused"


class BodyRefused(RequestRefused):
    """The body must not reach vLLM; `status` and `code` say how the client learns it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class LaunchRefused(BlockwardenError):
    """The engine must not start with this argument, environment variable or mounted file."""


class HookError(UnsupportedEngine):
    """vLLM's code is not what the plugin was written against, or a process runs without the plugin."""


class UnknownVersion(HookError):
    """The installed vLLM is not the recorded version."""


class ChangedHook(HookError):
    """A function or class that isolation stands on is gone or has other source than was recorded."""


class PluginMissing(HookError):
    """A process of the engine runs without the plugin's hooks."""
