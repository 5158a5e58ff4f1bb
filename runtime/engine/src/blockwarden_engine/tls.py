"""TLS contexts over mounted certificates that are renewed while the engine runs.

Kubernetes renews a mount by swapping a symbolic link, which file watchers on the old target never notice, and a context that
loads a new CA keeps trusting the old one. So the files are compared by content, a changed set makes a whole new context, and the
listening context hands each new connection to the newest one. Connections that are open stay as they are.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Final

from blockwarden_core import layout

from .errors import LaunchRefused

logger = logging.getLogger("vllm.blockwarden")
POLL_SECONDS: Final = 5.0


class MountedTls:
    """The server side of one directory with `tls.crt`, `tls.key` and `ca.crt`.

    Attributes:
        context: what the server listens with, for good.
        error: why the files as they are now cannot be used; None when they are in force.
    """

    def __init__(self, directory: Path, *, require_client: bool) -> None:
        """Args:
        directory: where the files are.
        require_client: whether clients must present a certificate of the CA.

        Raises:
            LaunchRefused: the files cannot be used.
        """
        self._directory, self._require_client = directory, require_client
        self._seen = self._observe()
        try:
            self._newest = self._make()
            self.context = self._make()
        except (OSError, ssl.SSLError) as error:
            raise LaunchRefused(f"{directory}: the certificate, its key or its CA cannot be used: {error}") from None
        self.context.sni_callback = self._hand_over
        self.error: str | None = None

    def poll(self) -> bool:
        """Whether changed files came into force; files that cannot be used leave the last good ones there."""
        seen = self._observe()
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            self._newest = self._make()
        except (OSError, ssl.SSLError) as error:
            self.error = f"the renewed certificate, its key or its CA cannot be used: {error}"
            logger.error("blockwarden: %s; the last good ones stay in use", self.error)
            return False
        self.error = None
        return True

    async def watch(self) -> None:
        """Polls for ever."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if self.poll():
                logger.info("blockwarden: renewed certificates of %s are in use", self._directory)

    def _hand_over(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _outer: ssl.SSLContext) -> None:
        connection.context = self._newest

    def _observe(self) -> tuple[bytes, ...]:
        return tuple(_read(self._directory / name) for name in (layout.TLS_CERT, layout.TLS_KEY, layout.TLS_CA))

    def _make(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self._directory / layout.TLS_CERT, self._directory / layout.TLS_KEY)
        if self._require_client:
            context.load_verify_locations(self._directory / layout.TLS_CA)
            context.verify_mode = ssl.CERT_REQUIRED
        context.num_tickets = 0  # a resumed session would not show its certificate again after a renewal
        return context


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
