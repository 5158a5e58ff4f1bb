"""Everything secret of one policy, planned together: salts, engine keys, API keys, certificates. Pure.

The rule for all of it: what is fit stays, what is missing or damaged is made anew, and the second is said aloud.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from blockwarden_core.errors import DocumentError
from blockwarden_core.identity import CANARY_TENANT
from blockwarden_core.keys import ApiKeys, EngineKeys, SaltKeyring
from blockwarden_core.policy import EnginePolicy, GatewayPolicy, open_policy, seal_policy

from .api import Tenant, TenantPolicySpec, TenantPolicyStatus
from .errors import KeyMaterialError
from .observed import Observed
from .pki import Pki, plan_pki
from .render import engine, gateway, secrets
from .render.names import Manifest, Owner
from .render.shares import payers, render_engine_policy, render_gateway_policy
from .rotation import (
    EVERYONE,
    RECORD_ANNOTATION,
    RotationInput,
    RotationPhase,
    RotationRecord,
    RotationState,
    is_lost,
    plan_rotation,
    requested_ids,
    served_generations,
    unknown_tenants,
)
from .salts import (
    API_KEY_FIELD,
    Credential,
    Entropy,
    check_credential,
    new_api_key,
    new_engine_keys,
    plan_api_keys,
    read_engine_keys,
    read_keyring,
    secret_data,
)


@dataclass(frozen=True, slots=True)
class Material:
    """What the Secrets and policy documents shall hold, what of it had to be replaced, and whose generated key waits."""

    rotation: RotationState
    engine_keys: EngineKeys
    api_keys: ApiKeys
    generated: Mapping[str, str] = field(repr=False)
    pki: Pki = field(repr=False)
    engine_policy: EnginePolicy
    sealed: str = field(repr=False)
    gateway_policy: GatewayPolicy
    problems: tuple[str, ...]
    keyring_lost: bool
    engine_keys_lost: bool
    renewed_keys: tuple[str, ...]
    unknown_tenants: tuple[str, ...]
    waiting_keys: tuple[str, ...]

    def manifests(self, owner: Owner) -> list[Manifest]:
        """The Secrets and ConfigMaps with all this in them."""
        return [
            secrets.render_keyring(owner, self.rotation),
            secrets.render_engine_keys(owner, self.engine_keys),
            secrets.render_digests(owner, self.api_keys),
            *(secrets.render_generated_key(owner, tenant, key) for tenant, key in self.generated.items()),
            *secrets.render_pki(owner, self.pki.data),
            engine.render_engine_config(owner, self.sealed),
            gateway.render_gateway_config(owner, self.gateway_policy),
        ]


def plan_material(
    observed: Observed, spec: TenantPolicySpec, status: TenantPolicyStatus, owner: Owner, *, drain_seconds: int, entropy: Entropy
) -> Material:
    """The material of a policy for this spec, at most one rotation phase further than it is."""
    engine_keys = read_engine_keys(observed.child("Secret", owner.engine_key))
    stored_policy = read_engine_policy(observed, owner)
    keyring_secret = observed.child("Secret", owner.salt_keyring)
    seen = _highest_generations(status, stored_policy, _read_record(keyring_secret))
    given = RotationInput(
        requested=requested_ids(observed.policy["metadata"].get("annotations") or {}),
        payers=payers(spec),
        stored=read_rotation(keyring_secret, status, stored_policy),
        generations=seen,
        gateways=observed.gateways,
        engines=observed.engines,
        engine_policy=stored_policy,
        now=int(observed.now.timestamp()),
        drain_seconds=drain_seconds,
    )
    rotation = plan_rotation(given, entropy)
    keys = engine_keys or new_engine_keys(entropy)
    policy, sealed = _plan_engine_policy(observed, spec, owner, rotation, keys, stored_policy)
    generated, renewed = _plan_generated_keys(observed, spec, owner, entropy)
    api_keys, problems = plan_api_keys(_credentials(observed, spec, generated))
    return Material(
        rotation=rotation,
        engine_keys=keys,
        api_keys=api_keys,
        generated=generated,
        pki=plan_pki(owner, observed.secrets(), now=observed.now, entropy=entropy),
        engine_policy=policy,
        sealed=sealed,
        gateway_policy=_plan_gateway_policy(observed, spec, owner),
        problems=tuple(problems),
        keyring_lost=is_lost(given),
        engine_keys_lost=engine_keys is None and bool(seen),
        renewed_keys=tuple(renewed) if seen else (),
        unknown_tenants=unknown_tenants(given.requested, given.payers),
        waiting_keys=_waiting_keys(spec, api_keys),
    )


def read_rotation(manifest: Manifest | None, status: TenantPolicyStatus, policy: EnginePolicy | None) -> RotationState | None:
    """The keyring and the record of its rotation; None where the keyring is lost."""
    keyring = read_keyring(manifest)
    if keyring is None or manifest is None:
        return None
    return RotationState(keyring, _read_record(manifest) or _recover_record(keyring, status, policy))


def _read_record(manifest: Manifest | None) -> RotationRecord | None:
    """The record beside the keyring, whether or not the keyring itself can be read; None where it is missing or damaged."""
    text = (((manifest or {}).get("metadata") or {}).get("annotations") or {}).get(RECORD_ANNOTATION, "")
    try:
        return RotationRecord.read(text)
    except DocumentError:
        return None


def _recover_record(keyring: SaltKeyring, status: TenantPolicyStatus, policy: EnginePolicy | None) -> RotationRecord:
    """The record that was lost alone: ids from the status, so that nothing rotates twice, and whatever the engine policy does not
    yet have of the keyring is distributed again."""
    rotation = status.rotation
    ids = dict(rotation.tenant_ids or {}) if rotation else {}
    if rotation and rotation.observed_id:
        ids[EVERYONE] = rotation.observed_id
    floors = {share.name: share.floor for share in policy.tenants} if policy else {}
    previous = {
        tenant: floors[tenant]
        for tenant, generation in keyring.generations.items()
        if tenant in floors and floors[tenant] < generation
    }
    unfinished = bool(previous) or len(keyring.secrets) > 1
    return RotationRecord(phase=RotationPhase.DISTRIBUTING if unfinished else RotationPhase.IDLE, ids=ids, previous=previous)


def read_engine_policy(observed: Observed, owner: Owner) -> EnginePolicy | None:
    """The engine policy in its ConfigMap, sealed by one of the stored engine keys; None where it is missing, damaged or not ours.

    Whoever edits the ConfigMap must not thereby decide about generations and versions: both only rise, so that one forged
    number would be with the policy for ever.
    """
    keys = read_engine_keys(observed.child("Secret", owner.engine_key))
    text = _policy_text(observed, owner)
    try:
        return open_policy(text, keys, policy_uid=owner.uid, in_force=None) if keys is not None else None
    except DocumentError:
        return None


def _policy_text(observed: Observed, owner: Owner) -> str:
    return str(((observed.child("ConfigMap", owner.engine) or {}).get("data") or {}).get(engine.POLICY_FILE) or "")


def _highest_generations(
    status: TenantPolicyStatus, policy: EnginePolicy | None, record: RotationRecord | None
) -> dict[str, int]:
    """The highest generation of each token tenant that is known outside the keyring; empty for a policy that never ran.

    The record outlives a keyring that is damaged, and the status outlives both.
    """
    known = [(share.name, share.generation) for share in policy.tenants] if policy else []
    known += [(tenant.name, tenant.salt_generation) for tenant in status.tenants if tenant.salt_generation is not None]
    if record is not None:
        known += [*record.departed.items(), *((tenant, left + 1) for tenant, left in record.previous.items())]
    seen: dict[str, int] = {}
    for tenant, generation in known:
        seen[tenant] = max(generation, seen.get(tenant, 0))
    seen.pop(CANARY_TENANT, None)
    return seen


def _plan_engine_policy(
    observed: Observed,
    spec: TenantPolicySpec,
    owner: Owner,
    rotation: RotationState,
    keys: EngineKeys,
    last: EnginePolicy | None,
) -> tuple[EnginePolicy, str]:
    """The engine policy and its sealed text: with a new version only where it says something else, and the same text where it is
    sealed by the active key."""
    served = served_generations(rotation)
    if last is not None and last == render_engine_policy(spec, owner, served, last.version):
        return last, seal_policy(last, keys)
    reported = [report.policy_version for report in observed.engines.values() if report is not None]
    version = _next_version(observed, [last.version if last else 0, *reported])
    policy = render_engine_policy(spec, owner, served, version)
    return policy, seal_policy(policy, keys)


def _plan_gateway_policy(observed: Observed, spec: TenantPolicySpec, owner: Owner) -> GatewayPolicy:
    text = ((observed.child("ConfigMap", owner.gateway) or {}).get("data") or {}).get(gateway.POLICY_FILE)
    try:
        last = GatewayPolicy.read(text) if text is not None else None
    except DocumentError:
        last = None
    if last is not None and last == render_gateway_policy(spec, owner, last.version):
        return last
    reported = [report.policy_version for report in observed.gateways.values() if report is not None]
    return render_gateway_policy(spec, owner, _next_version(observed, [last.version if last else 0, *reported]))


def _next_version(observed: Observed, earlier: Iterable[int]) -> int:
    """Above every version that was ever seen in force; otherwise the time in milliseconds, so that a lost one is overtaken."""
    return max(int(observed.now.timestamp() * 1000), *(version + 1 for version in earlier))


def _plan_generated_keys(
    observed: Observed, spec: TenantPolicySpec, owner: Owner, entropy: Entropy
) -> tuple[dict[str, str], list[str]]:
    """The generated API key of every tenant that brings none, and for whom it had to be made."""
    keys: dict[str, str] = {}
    made: list[str] = []
    for tenant in spec.tenants:
        if tenant.api_keys:
            continue
        credential = _generated_credential(observed, owner, tenant)
        if credential.value is None or check_credential(credential) is not None:
            keys[tenant.name] = new_api_key(entropy)
            made.append(tenant.name)
        else:
            keys[tenant.name] = credential.value.decode("ascii")
    return keys, made


def _waiting_keys(spec: TenantPolicySpec, api_keys: ApiKeys) -> tuple[str, ...]:
    """The tenants whose own keys are all unfit: a key that was generated before opens nothing, but is not thrown away yet.

    Otherwise one misspelt reference would end a credential that many clients hold, and mending it would not bring it back.
    """
    served = {key.tenant for key in api_keys.keys}
    return tuple(tenant.name for tenant in spec.tenants if tenant.api_keys and tenant.name not in served)


def _generated_credential(observed: Observed, owner: Owner, tenant: Tenant) -> Credential:
    name = owner.generated_key(tenant.name)
    return Credential(tenant.name, None, f"Secret {name}", _field(observed.child("Secret", name), API_KEY_FIELD))


def _credentials(observed: Observed, spec: TenantPolicySpec, generated: Mapping[str, str]) -> list[Credential]:
    found = [Credential(tenant, None, "a generated API key", key.encode()) for tenant, key in generated.items()]
    for tenant in spec.tenants:
        for source in tenant.api_keys:
            reference = source.secret_ref
            origin = (
                f"spec.tenants[{tenant.name}].apiKeys[{source.name}].secretRef: key {reference.key} of Secret {reference.name}"
            )
            value = _field(observed.referenced.get(reference.name), reference.key)
            found.append(Credential(tenant.name, source.user, origin, value))
    return found


def _field(manifest: Manifest | None, name: str) -> bytes | None:
    try:
        return secret_data(manifest, name)
    except KeyMaterialError:
        return None
