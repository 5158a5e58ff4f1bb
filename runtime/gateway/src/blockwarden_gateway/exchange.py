"""What is known about one request while it is served: for the access log, the metrics and the tenant's token limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .routes.call import Tally

UNKNOWN: Final = ""
"""The tenant of a request that nobody authenticated."""
CLIENT_GONE: Final = 499
"""The status in logs and metrics of a request whose client left; nobody received it."""


@dataclass(slots=True)
class Exchange:
    """Times are of a monotonic clock, in seconds."""

    request_id: str
    route: str
    started: float
    tenant: str = UNKNOWN
    status: int = 0
    engine: str | None = None
    first_token: float | None = None
    tally: Tally | None = None
    sent_bytes: int = 0
    """Size of the body that an engine got; 0 while none did."""
    events: int = 0

    @property
    def tokens(self) -> int:
        """What the answer cost: as the engine counted, or an estimate where the client left before the count came."""
        return self.tally.total if self.tally else self.sent_bytes // 4 + self.events
