"""The last accepted spec, kept in the cluster: what a refused change falls back to, also after a restart of the operator. Pure.

It lies in a ConfigMap, and whoever edits that must not thereby decide what runs: the copy is sealed under the policy's engine key
and bound to the TenantPolicy's UID, so that only what the operator accepted for this very object comes back. What was accepted
under an earlier list of image prefixes stays in force like everything else that was: only changes are refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from blockwarden_core.document import Document
from blockwarden_core.errors import DocumentError
from blockwarden_core.keys import EngineKeys
from blockwarden_core.sealed import open_sealed, seal

from .api import TenantPolicySpec
from .api.conditions import AcceptedReason
from .checks import CheckInput, check_spec
from .observed import Observed
from .render.names import Component, Manifest, Owner, render_object
from .render.shares import canary_blocks
from .salts import read_engine_keys

ACCEPTED_FILE: Final = "accepted.json"
_SEALED_AS: Final = "accepted"
_ABOUT_OTHER_OBJECTS: Final = frozenset({AcceptedReason.MODEL_SOURCE_MISSING, AcceptedReason.SECRET_MISSING})


@dataclass(frozen=True, slots=True)
class InForce:
    """The spec to run, which is the last accepted one where the present one is refused."""

    spec: TenantPolicySpec
    generation: int


class AcceptedSpec(Document):
    """The payload of the sealed copy."""

    kind: Literal["AcceptedSpec"] = "AcceptedSpec"
    policy_uid: str
    generation: Annotated[int, Field(ge=0)]
    spec: TenantPolicySpec


def read_accepted(observed: Observed, owner: Owner) -> InForce | None:
    """The last accepted spec; None where there was none, or none that this operator sealed, can read and would accept.

    Whether the objects that it refers to are still there does not matter; whether it keeps isolation does, since a rule may be
    younger than the copy. Without the engine key, no copy can be told from a forged one, and none comes into force.
    """
    keys = read_engine_keys(observed.child("Secret", owner.engine_key))
    text = ((observed.child("ConfigMap", owner.accepted) or {}).get("data") or {}).get(ACCEPTED_FILE)
    if keys is None or text is None:
        return None
    try:
        copy = AcceptedSpec.read(open_sealed(_SEALED_AS, text, keys))
    except DocumentError:
        return None
    if copy.policy_uid != owner.uid:
        return None
    refusal = check_spec(CheckInput(spec=copy.spec, referenced=observed.referenced, reserved_blocks=canary_blocks(copy.spec)))
    refused = refusal is not None and refusal.reason not in _ABOUT_OTHER_OBJECTS
    return None if refused else InForce(copy.spec, copy.generation)


def render_accepted(owner: Owner, force: InForce, keys: EngineKeys) -> Manifest:
    """The ConfigMap with the spec in force."""
    copy = AcceptedSpec(policy_uid=owner.uid, generation=force.generation, spec=force.spec)
    payload = copy.model_dump(mode="json", by_alias=True, exclude_none=True)
    text = seal(_SEALED_AS, json.dumps(payload, sort_keys=True, separators=(",", ":")), keys)
    return render_object("ConfigMap", owner, owner.accepted, Component.POLICY, {"data": {ACCEPTED_FILE: text}})
