"""Attests one engine: asks everything that `attestation` judges, in order, and stops at the first problem."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final

from blockwarden_core import layout
from blockwarden_core.policy import CANARY_TOKENS
from blockwarden_core.report import Attestation
from blockwarden_gateway.errors import SaltUnavailable, UpstreamError
from blockwarden_gateway.material import Material
from blockwarden_gateway.routes import GENERATION
from blockwarden_gateway.routes.completions import ROUTE as COMPLETIONS
from blockwarden_gateway.salting import salt_for

from .attestation import (
    CANARY_VOCABULARY,
    Answer,
    Inconclusive,
    Problem,
    Refused,
    canary_body,
    canary_sharing,
    check_attestation,
    check_refusal,
    check_sharing,
    read_attestation,
    read_cached,
    refusal_probes,
)
from .client import Request, Target, Upstream

PROBE_SECONDS: Final = 120.0


async def attest(upstream: Upstream, target: Target, material: Material) -> Attestation | Problem:
    """The engine's statement where it holds, else why not."""
    prober = _Prober(upstream, target)
    try:
        return await prober.attest(material)
    except (UpstreamError, SaltUnavailable) as error:
        return Inconclusive(str(error))


class _Prober:
    def __init__(self, upstream: Upstream, target: Target) -> None:
        self._upstream, self._target = upstream, target
        self._nonce = ""

    async def attest(self, material: Material) -> Attestation | Problem:
        answer = await self._ask(layout.ATTESTATION_PATH, None)
        statement = read_attestation(answer)
        if not isinstance(statement, Attestation):
            return statement
        problem = check_attestation(statement, answer.boot, policy_uid=material.policy.policy_uid)
        if problem is not None:
            return problem
        self._nonce = statement.boot_nonce
        return await self._refusals(material) or await self._sharing(material) or statement

    async def _refusals(self, material: Material) -> Problem | None:
        probes = refusal_probes(material, forged_key=secrets.token_bytes(32), paths=tuple(GENERATION))
        if isinstance(probes, Refused):
            return probes
        for probe in probes:
            problem = check_refusal(probe, await self._ask(probe.path, probe.body), nonce=self._nonce)
            if problem is not None:
                return problem
        return None

    async def _sharing(self, material: Material) -> Problem | None:
        """Scope A, A again, B, with a prompt that nobody ever sent."""
        prompt = [secrets.choice(CANARY_VOCABULARY) for _ in range(CANARY_TOKENS)]
        cached: list[int] = []
        for scope in ("A", "A", "B"):
            count = await self._canary(material, prompt, scope)
            if not isinstance(count, int):
                return count
            cached.append(count)
        return check_sharing(*cached)

    async def _canary(self, material: Material, prompt: Sequence[int], scope: str) -> int | Problem:
        token = salt_for(canary_sharing(scope), material).token
        answer = await self._ask(COMPLETIONS.path, canary_body(material.policy.model, prompt, token))
        return read_cached(answer, nonce=self._nonce)

    async def _ask(self, path: str, body: bytes | None) -> Answer:
        headers = {layout.REQUEST_ID_HEADER: f"gw-{secrets.token_hex(16)}"}
        if body is not None:
            headers |= {"content-type": "application/json", layout.BOOT_HEADER: self._nonce}
        reply = await self._upstream.send(self._target, Request(path, body, headers), seconds=PROBE_SECONDS)
        try:
            # A refusal is judged by its head and a short body; a stream that was wrongly served is not read to its end.
            return Answer(reply.status, reply.boot, await reply.read() if not _streams(reply.status, body) else b"")
        finally:
            reply.close()


def _streams(status: int, body: bytes | None) -> bool:
    return status == 200 and body is not None and b'"stream":true' in body
