"""Whether an engine may be trusted with a request: the verdict on each thing that was asked of it. Pure.

`Refused` is an engine that fails to isolate: no traffic from now on. `Inconclusive` is one that could not be asked: no traffic
to a new one; one that was attested before, as the same process, is asked again a few times first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from blockwarden_core.errors import DocumentError, ForgedToken, MissingToken, RetiredToken
from blockwarden_core.hooks import REQUIRED_HOOKS
from blockwarden_core.identity import CANARY_TENANT, Scope, Sharing
from blockwarden_core.report import Attestation
from blockwarden_core.salt import sign_token
from blockwarden_gateway.material import Material
from blockwarden_gateway.plain import error_code
from blockwarden_gateway.salting import salt_for

CANARY_VOCABULARY: Final = range(32, 256)
"""Token ids that every model has."""


@dataclass(frozen=True, slots=True)
class Refused:
    reason: str


@dataclass(frozen=True, slots=True)
class Inconclusive:
    reason: str


Problem = Refused | Inconclusive


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine answered to one probe."""

    status: int
    boot: str | None
    body: bytes


@dataclass(frozen=True, slots=True)
class RefusalProbe:
    """A request that an engine must refuse with 403 and `code`."""

    name: str
    path: str
    body: bytes
    code: str


def read_attestation(answer: Answer) -> Attestation | Problem:
    """The engine's own statement."""
    if answer.status != 200:
        return _unusable(answer, "attestation")
    try:
        return Attestation.read(answer.body)
    except DocumentError:
        return Refused("the attestation is unreadable")


def check_attestation(attestation: Attestation, boot: str | None, *, policy_uid: str) -> Problem | None:
    """The first thing in an engine's statement that rules it out."""
    if attestation.policy_uid != policy_uid:
        return Refused("the engine enforces another TenantPolicy")
    if not attestation.boot_nonce or boot != attestation.boot_nonce:
        return Refused("the engine's boot nonce is not the one in its answers")
    missing = sorted(REQUIRED_HOOKS - attestation.hooks.keys())
    if missing:
        return Refused(f"the engine runs without the hooks {', '.join(missing)}")
    return None


def check_refusal(probe: RefusalProbe, answer: Answer, *, nonce: str) -> Problem | None:
    """Whether the engine refused what it must refuse, before it began to answer."""
    if answer.status != 403:
        if 200 <= answer.status < 300:
            return Refused(f"the engine served a request that is {probe.name}")
        return _unusable(answer, f"{probe.name} request")
    if answer.boot != nonce:
        return Inconclusive("the engine started again while it was asked")
    if error_code(answer.body) != probe.code:
        return Refused(f"the engine refused a request that is {probe.name} for another reason")
    return None


def read_cached(answer: Answer, *, nonce: str) -> int | Problem:
    """The cached tokens that the engine reports for a canary request."""
    if answer.status != 200:
        return _unusable(answer, "canary request")
    if answer.boot != nonce:
        return Inconclusive("the engine started again while it was asked")
    try:
        reply = msgspec.json.decode(answer.body)
        details = reply["usage"].get("prompt_tokens_details") or {}
        return int(details.get("cached_tokens") or 0)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError, AttributeError, ValueError):
        return Refused("the engine's answer to a canary request is unreadable")


def check_sharing(cold: int, again: int, other: int) -> Problem | None:
    """Whether two scopes share nothing, and whether the probe could have told.

    Args:
        cold, again: cached tokens of scope A's first and second request. other: of scope B's.
    """
    if cold or other:
        return Refused("the engine shares cache across scopes")
    if not again:
        return Inconclusive("the engine reports no cached tokens within one scope, so nothing is proven")
    return None


def _unusable(answer: Answer, what: str) -> Problem:
    if answer.status in (421, 429) or answer.status >= 500:
        return Inconclusive(f"the engine answered {answer.status} to the {what}")
    return Refused(f"the engine answered {answer.status} to the {what}")


def refusal_probes(material: Material, *, forged_key: bytes, paths: Sequence[str]) -> tuple[RefusalProbe, ...] | Refused:
    """What an engine must refuse, on each route, streamed on every other one.

    Args:
        forged_key: random; signs the forged token.
    """
    canary = salt_for(canary_sharing("refusals"), material)
    if canary.generation < 2:
        return Refused("the canary's generation must be at least 2, or no retired token exists to be refused")

    def token(key: bytes, generation: int) -> str:
        uid = material.policy.policy_uid
        return sign_token(key, policy_uid=uid, tenant=CANARY_TENANT, generation=generation, salt=canary.salt)

    salts: Mapping[str, tuple[str | None, str]] = {
        "unsalted": (None, MissingToken.code),
        "forged": (token(forged_key, canary.generation), ForgedToken.code),
        "retired": (token(material.engine_keys.signing_key, canary.generation - 1), RetiredToken.code),
    }
    return tuple(
        RefusalProbe(name, path, probe_body(path, material.policy.model, salt, stream=stream), code)
        for name, (salt, code) in salts.items()
        for path, stream in zip(paths, (False, True) * len(paths), strict=False)
    )


def probe_body(path: str, model: str, salt: str | None, *, stream: bool) -> bytes:
    """A small request for a route."""
    prompt: dict[str, Any] = {"prompt": [32]}
    if path.endswith("/chat/completions"):
        prompt = {"messages": [{"role": "user", "content": "."}]}
    return msgspec.json.encode({"model": model, "max_tokens": 1, "stream": stream, **prompt} | _salted(salt))


def canary_body(model: str, prompt: Sequence[int], salt: str) -> bytes:
    return msgspec.json.encode({"model": model, "max_tokens": 1, "prompt": list(prompt)} | _salted(salt))


def canary_sharing(name: str) -> Sharing:
    return Sharing(CANARY_TENANT, Scope.SESSION, (CANARY_TENANT, "", name))


def _salted(salt: str | None) -> dict[str, str]:
    return {} if salt is None else {"cache_salt": salt}
