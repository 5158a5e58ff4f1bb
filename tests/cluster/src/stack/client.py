"""A client of the OpenAI API as the demo and the tests need it: one request, its cached tokens and its time to first token.

Standard library only, so that it runs wherever Python does, inside a test pod as well.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Answer:
    """What one request came to. Token counts are the server's own; times are in seconds from the moment of sending.

    `whole` is false for a stream that broke off: an error event in it, or no `[DONE]` at its end.
    """

    status: int
    text: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    first_token: float | None = None
    total: float = 0.0
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    whole: bool = True


@dataclass(frozen=True)
class Client:
    """One caller: a base URL (`http://host:port`), an API key (None sends none) and extra headers."""

    base_url: str
    api_key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 120.0
    tls: ssl.SSLContext | None = None

    def get(self, path: str) -> Answer:
        """A GET, its JSON body parsed where it is JSON."""
        return self._plain("GET", path, None)

    def post(self, path: str, body: Any) -> Answer:
        """A POST without streaming; `body` is sent as JSON, or as it is when it is bytes."""
        return self._plain("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode())

    def chat(self, model: str, prompt: str, *, max_tokens: int = 8, **extra: Any) -> Answer:
        """A streamed chat completion of one user message, at temperature 0."""
        body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "temperature": 0}
        return self.stream("/v1/chat/completions", body | extra)

    def stream(self, path: str, body: Mapping[str, Any]) -> Answer:
        """A POST with streaming and usage; the first token's time is that of the first chunk that carries text."""
        payload = {"stream": True, "stream_options": {"include_usage": True}} | dict(body)
        connection = self._connect()
        started = time.monotonic()
        try:
            connection.request("POST", path, json.dumps(payload), self._headers())
            response = connection.getresponse()
            if response.status != 200:
                return _read_whole(response, started)
            return _read_stream(response, started)
        finally:
            connection.close()

    def _plain(self, method: str, path: str, body: bytes | None) -> Answer:
        connection = self._connect()
        started = time.monotonic()
        try:
            connection.request(method, path, body, self._headers())
            response = connection.getresponse()
            return _read_whole(response, started)
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        url = urlsplit(self.base_url)
        if url.scheme == "https":
            return http.client.HTTPSConnection(url.netloc, timeout=self.timeout, context=self.tls)
        return http.client.HTTPConnection(url.netloc, timeout=self.timeout)

    def _headers(self) -> dict[str, str]:
        authorization = {"authorization": f"Bearer {self.api_key}"} if self.api_key is not None else {}
        return {"content-type": "application/json"} | authorization | dict(self.headers)


def _read_whole(response: http.client.HTTPResponse, started: float) -> Answer:
    raw = response.read()
    try:
        body = json.loads(raw)
    except ValueError:
        body = None
    usage = body.get("usage") or {} if isinstance(body, dict) else {}
    return Answer(
        response.status,
        raw.decode(errors="replace"),
        prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=_cached(usage),
        total=time.monotonic() - started,
        body=body,
        headers={name.lower(): value for name, value in response.getheaders()},
    )


def _read_stream(response: http.client.HTTPResponse, started: float) -> Answer:
    usage: dict[str, Any] = {}
    first, text, failed, done = None, "", None, False
    for line in response:
        done = done or line.strip() == b"data: [DONE]"
        if not line.startswith(b"data: ") or done:
            continue
        chunk = json.loads(line[len(b"data: ") :])
        failed = chunk.get("error") or failed
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices", ()):
            piece = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            if piece and first is None:
                first = time.monotonic() - started
            text += piece
    return Answer(
        response.status,
        text,
        prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=_cached(usage),
        first_token=first,
        total=time.monotonic() - started,
        body=failed,
        whole=done and failed is None,
        headers={name.lower(): value for name, value in response.getheaders()},
    )


def _cached(usage: Mapping[str, Any]) -> int | None:
    details = usage.get("prompt_tokens_details")
    return details.get("cached_tokens") if isinstance(details, dict) else None
