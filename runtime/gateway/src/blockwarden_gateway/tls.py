"""TLS contexts that follow their mounted files.

A served context is one object for the life of its server: loading a new certificate into it changes what the next handshake
shows. A client context is built anew, so that connections made with the old one are not taken for the new one's.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

from blockwarden_core import layout

from .errors import StartError
from .logs import Log
from .mounts import Fingerprint, observe_fingerprint

_FILES = (layout.TLS_CERT, layout.TLS_KEY, layout.TLS_CA)


def server_context(directory: Path) -> ssl.SSLContext:
    """A context that serves the certificate in `directory`.

    Raises:
        OSError, ssl.SSLError: missing or unusable.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, directory)
    return context


def client_context(directory: Path) -> ssl.SSLContext:
    """A context that trusts the CA in `directory` alone and shows the certificate there.

    Raises:
        OSError, ssl.SSLError: missing or unusable.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(directory / layout.TLS_CA)
    _load(context, directory)
    return context


def _load(context: ssl.SSLContext, directory: Path) -> None:
    context.load_cert_chain(directory / layout.TLS_CERT, directory / layout.TLS_KEY)


def _required(make: Callable[[Path], ssl.SSLContext], root: Path, name: str) -> ssl.SSLContext:
    try:
        return make(root / name)
    except (OSError, ssl.SSLError):
        raise StartError(f"cannot start: {name}: the certificate, its key or its CA is missing or unusable") from None


class Certificates:
    """Every TLS directory of this gateway, reloaded when its files change."""

    def __init__(self, root: Path, *, public: bool, log: Log) -> None:
        """Loads them once.

        Raises:
            StartError: one is missing or unusable.
        """
        self._root, self._log = root, log
        self._problems: dict[str, str] = {}
        self.client = _required(client_context, root, layout.CLIENT_TLS)
        self.internal = _required(server_context, root, layout.INTERNAL_TLS)
        self.public = _required(server_context, root, layout.PUBLIC_TLS) if public else None
        self._seen = {name: self._fingerprint(name) for name in self._directories}

    @property
    def _directories(self) -> tuple[str, ...]:
        always = (layout.CLIENT_TLS, layout.INTERNAL_TLS)
        return (*always, layout.PUBLIC_TLS) if self.public else always

    @property
    def error(self) -> str | None:
        return "; ".join(f"{path}: {problem}" for path, problem in sorted(self._problems.items())) or None

    async def watch(self, seconds: float) -> None:
        """Reloads until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            self.reload()

    def reload(self) -> None:
        """Takes new certificates into force; an unusable one leaves the old one there."""
        for name in self._directories:
            fingerprint = self._fingerprint(name)
            if fingerprint == self._seen[name]:
                continue
            self._seen[name] = fingerprint
            try:
                self._take(name)
            except (OSError, ssl.SSLError):
                self._problems[name] = "the certificate, its key or its CA is unusable"
            else:
                self._problems.pop(name, None)
            self._log.write("reload", file=name, result="bad" if name in self._problems else "good")

    def _take(self, name: str) -> None:
        directory = self._root / name
        if name == layout.CLIENT_TLS:
            self.client = client_context(directory)
            return
        server_context(directory)  # a certificate and a key that do not match must not reach the context in use
        served = self.public if name == layout.PUBLIC_TLS else self.internal
        if served is not None:
            _load(served, directory)

    def _fingerprint(self, name: str) -> tuple[Fingerprint | None, ...]:
        return tuple(observe_fingerprint(self._root / name / file) for file in _FILES)
