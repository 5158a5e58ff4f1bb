"""Errors of blockwarden-gateway.

    BlockwardenError
    └── GatewayError
        ├── StartError               the process cannot start: a mounted file or the environment is unusable
        ├── SaltUnavailable          the mounted keyring has no generation for a tenant that the policy serves
        ├── ClientGone               the client closed its connection
        ├── UpstreamError            what happened between this gateway and one engine
        │   ├── Unreachable          no connection: the engine has seen nothing of the request
        │   ├── Disconnected         the connection ended before the first byte of an answer
        │   └── Broken               the answer ended early, or is not what an engine sends
        │       └── Reported         it holds an error instead, though its status was 200
        └── Refusal                  an answer to the client, in OpenAI's shape; each type has its status and code
            ├── InvalidRequest       400
            │   └── MediaRefused     400
            ├── Unauthenticated      401
            ├── ScopeRefused         403
            ├── NoSuchModel          404
            ├── BodyTimeout          408
            ├── BodyTooLarge         413
            ├── EncodingRefused      415
            ├── LimitReached         429
            ├── GatewayFailed        500
            ├── EngineFailed         502
            └── EngineUnavailable    503

Messages travel to clients and logs: they hold no secret, salt, key, prompt or text of an engine.
"""

from __future__ import annotations

from typing import ClassVar

from blockwarden_core.errors import BlockwardenError


class GatewayError(BlockwardenError):
    """Root of the gateway's errors."""


class StartError(GatewayError):
    """The process cannot start; the message says which file or variable, and what is wrong with it."""


class SaltUnavailable(GatewayError):
    """The mounted keyring lacks a tenant of the mounted policy: they travel in two objects, and one is still on its way."""


class ClientGone(GatewayError):
    """The client closed its connection; nobody is left to answer."""


class UpstreamError(GatewayError):
    """One engine did not answer properly."""


class Unreachable(UpstreamError):
    """No connection to the engine was made, so sending the request elsewhere runs it once."""


class Disconnected(UpstreamError):
    """The connection ended before the first byte of the answer. `reused` tells a stale idle connection from a failing engine."""

    def __init__(self, message: str, *, reused: bool) -> None:
        super().__init__(message)
        self.reused = reused


class Broken(UpstreamError):
    """The answer ended early, is too large, or cannot be read."""


class Reported(Broken):
    """The engine found out too late for a status of its own: what it says, and the status that it would have had."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__("the engine reported an error")
        self.status = status
        self.body = body


class Refusal(GatewayError):
    """An answer to the client.

    Args:
        message: one sentence for the client.
        param: the field or header at fault, as a path.
        retry_after: whole seconds after which the same request may succeed.
    """

    status: ClassVar[int] = 400
    type: ClassVar[str] = "invalid_request_error"
    code: ClassVar[str | None] = None

    def __init__(self, message: str, *, param: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after


class InvalidRequest(Refusal):
    code = "invalid_request"


class MediaRefused(InvalidRequest):
    code = "media_refused"


class Unauthenticated(Refusal):
    status = 401
    code = "invalid_api_key"


class ScopeRefused(Refusal):
    status = 403
    code = "scope_refused"


class NoSuchModel(Refusal):
    status = 404
    code = "model_not_found"


class BodyTimeout(Refusal):
    status = 408
    code = "request_timeout"


class BodyTooLarge(Refusal):
    status = 413
    code = "request_too_large"


class EncodingRefused(Refusal):
    status = 415
    code = "encoding_refused"


class LimitReached(Refusal):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class GatewayFailed(Refusal):
    status = 500
    type = "server_error"
    code = "gateway_failed"


class EngineFailed(Refusal):
    status = 502
    type = "server_error"
    code = "engine_failed"


class EngineUnavailable(Refusal):
    status = 503
    type = "server_error"
    code = "engine_unavailable"
