"""Whether a TenantPolicy may be taken into force: what its schema cannot say, because it depends on other objects or on the
operator's settings, and once more what isolation rests on, because a stored object may be older than a rule.

A gatherer fills one `CheckInput`; pure functions of it form a chain; the first refusal becomes `Accepted=False`, and the last
accepted spec stays in force. API keys are not judged here: a key that is missing, weak or shared must stop working at once,
whatever else holds (`salts.plan_api_keys`, condition SecretsReady), and a refused spec would keep it working.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from blockwarden_core import engine_args, layout
from blockwarden_core.identity import RESERVED_TENANTS, Scope
from blockwarden_core.kv_transfer import PROVEN, UNPROVEN
from blockwarden_core.policy import MIN_MODEL_LEN, blocks_of

from .api import AcceptedReason, TenantPolicySpec
from .api.model import holds_no_weights
from .observed import RefusedObject
from .render.names import FIELD_MANAGER, MANAGED_BY_LABEL, Component, Manifest


@dataclass(frozen=True, slots=True)
class CheckInput:
    """Everything that the chain depends on.

    Args:
        spec: the spec to judge.
        referenced: the Secrets that `secret_references` names, by name; None for one that does not exist.
        volume_claims: the PersistentVolumeClaim that the spec names, where it exists.
        foreign: `Kind name` of every object that has the name of one of ours and another owner.
        reserved_blocks: blocks that the operator keeps for its own probes in every engine.
        image_prefixes: registries, folders or repositories that a policy's images must come from; empty allows every image.
    """

    spec: TenantPolicySpec
    referenced: Mapping[str, Manifest | None] = field(default_factory=dict, repr=False)
    volume_claims: frozenset[str] = frozenset()
    foreign: tuple[str, ...] = ()
    reserved_blocks: int = 0
    image_prefixes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a spec is not taken into force; the message names the field and the mend, and no value of a Secret."""

    reason: AcceptedReason
    message: str


@dataclass(frozen=True, slots=True)
class SecretReference:
    """A place in the spec that names a Secret, and the keys that it must hold."""

    path: str
    name: str
    keys: tuple[str, ...]


Check = Callable[[CheckInput], Refusal | None]
_FIELD_OF_COMPONENT: Final[Mapping[str, str]] = {
    Component.ENGINE: "spec.engine",
    Component.GATEWAY: "spec.gateway",
    Component.WEIGHTS: "spec.model.source",
}


def check_spec(given: CheckInput) -> Refusal | None:
    """The first refusal of the chain; None when the spec may be taken into force."""
    return next((refusal for check in CHAIN if (refusal := check(given)) is not None), None)


def secret_references(spec: TenantPolicySpec) -> tuple[SecretReference, ...]:
    """Every Secret that a spec names, API keys included, in the order of the fields."""
    return (*_required_secrets(spec), *_api_key_secrets(spec))


def check_tenant_names(given: CheckInput) -> Refusal | None:
    """Make sure that no tenant has the name of one of blockwarden's own."""
    for tenant in given.spec.tenants:
        if tenant.name in RESERVED_TENANTS:
            return Refusal(
                AcceptedReason.NAME_RESERVED,
                f"spec.tenants[{tenant.name}].name: is reserved for blockwarden itself: choose another name",
            )
    return None


def check_scopes(given: CheckInput) -> Refusal | None:
    """Make sure that tenants only narrow the policy's scope."""
    granted = given.spec.isolation.scope
    for tenant in given.spec.tenants:
        if not granted.may_narrow_to(given.spec.granted(tenant)):
            return Refusal(
                AcceptedReason.SCOPE_WIDENED,
                f"spec.tenants[{tenant.name}].scope: {tenant.scope} is wider than spec.isolation.scope: "
                f"use {granted} or a narrower one",
            )
    return None


def check_users(given: CheckInput) -> Refusal | None:
    """Make sure that every credential of a tenant with scope User names its user."""
    for tenant in given.spec.tenants:
        if given.spec.granted(tenant) is not Scope.USER:
            continue
        if not tenant.api_keys:
            return Refusal(
                AcceptedReason.USER_MISSING,
                f"spec.tenants[{tenant.name}].apiKeys: a generated key names no user, and scope User needs one: "
                "list a key with its user for everybody",
            )
        for key in tenant.api_keys:
            if key.user is None:
                return Refusal(
                    AcceptedReason.USER_MISSING,
                    f"spec.tenants[{tenant.name}].apiKeys[{key.name}].user: is missing, and scope User needs it: set it",
                )
    return None


def check_percentages(given: CheckInput) -> Refusal | None:
    """Make sure that all guarantees can be kept at one time."""
    amounts = [tenant.kv_cache.guaranteed for tenant in given.spec.tenants]
    total = sum(int(amount.removesuffix("%")) for amount in amounts if isinstance(amount, str))
    if total <= 100:
        return None
    return _over_quota(f"spec.tenants[].kvCache.guaranteed: the percentages add up to {total}%: lower them to 100% together")


def check_pool(given: CheckInput) -> Refusal | None:
    """Make sure that the pool, where its size is known, holds the guarantees and leaves every tenant a block."""
    if (pool := given.spec.engine.kv_cache.blocks) is None:
        return None
    amounts = [tenant.kv_cache.guaranteed for tenant in given.spec.tenants]
    rest = pool - given.reserved_blocks - sum(amount for amount in amounts if isinstance(amount, int))
    if rest < 0:
        return _over_quota(
            f"spec.tenants[].kvCache.guaranteed: with {given.reserved_blocks} blocks for blockwarden's own probes they "
            f"are {-rest} more than the {pool} of spec.engine.kvCache.blocks: lower them or raise blocks"
        )
    for tenant in given.spec.tenants:
        if blocks_of(tenant.kv_cache.effective_limit, rest) == 0:
            return _over_quota(
                f"spec.tenants[{tenant.name}].kvCache: {tenant.kv_cache.effective_limit} of the {rest} blocks left is no "
                "block at all: raise it, or spec.engine.kvCache.blocks"
            )
    return None


def check_shared_units(given: CheckInput) -> Refusal | None:
    """Make sure that the quotas of tenants with scope None can be added up."""
    members = [tenant for tenant in given.spec.tenants if given.spec.granted(tenant) is Scope.NONE]
    if len({isinstance(tenant.kv_cache.guaranteed, int) for tenant in members}) < 2:
        return None
    return Refusal(
        AcceptedReason.QUOTA_EXCEEDED,
        "spec.tenants[].kvCache: tenants of scope None share one quota, and theirs mix blocks with percentages: use one unit",
    )


def check_model_length(given: CheckInput) -> Refusal | None:
    """Make sure that the gateways' attestation fits into the engine's context: without it no engine ever gets traffic."""
    length = given.spec.engine.max_model_len
    if length is None or length >= MIN_MODEL_LEN:
        return None
    return Refusal(
        AcceptedReason.ENGINE_ARGUMENT_REFUSED,
        f"spec.engine.maxModelLen: is {length}, and engines are attested with a request of {MIN_MODEL_LEN} tokens: "
        f"set at least {MIN_MODEL_LEN}, or leave it out",
    )


def check_engine_arguments(given: CheckInput) -> Refusal | None:
    """Make sure that no engine argument can undo isolation."""
    problem = engine_args.refusal(given.spec.engine.extra_args)
    return Refusal(AcceptedReason.ENGINE_ARGUMENT_REFUSED, f"spec.engine.extraArgs: {problem}") if problem else None


def check_adapters(given: CheckInput) -> Refusal | None:
    """Make sure that engines have the adapters that tenants may name."""
    args = given.spec.engine.extra_args
    modules = (arg.removeprefix("--lora-modules=") for arg in args if arg.startswith("--lora-modules="))
    loaded = {module.split("=")[0] for module in modules} if "--enable-lora" in args else set()
    for tenant in given.spec.tenants:
        for model in tenant.models:
            if model.adapter is not None and model.adapter not in loaded:
                return Refusal(
                    AcceptedReason.ENGINE_ARGUMENT_REFUSED,
                    f"spec.tenants[{tenant.name}].models[{model.name}].adapter: engines load no adapter {model.adapter}: "
                    f"set --enable-lora and --lora-modules={model.adapter}=<directory> in spec.engine.extraArgs",
                )
    return None


def check_external_cache(given: CheckInput) -> Refusal | None:
    """Make sure that an external cache is one that is known to keep tenants apart."""
    transfer = given.spec.engine.kv_transfer
    if transfer is None or transfer.connector in PROVEN:
        return None
    return Refusal(AcceptedReason.ENGINE_ARGUMENT_REFUSED, f"spec.engine.kvTransfer: {UNPROVEN}: remove it")


def check_engine_environment(given: CheckInput) -> Refusal | None:
    """Make sure that no environment variable of the engine can undo isolation."""
    problem = engine_args.env_refusal({variable.name: variable.value for variable in given.spec.engine.env})
    return Refusal(AcceptedReason.ENVIRONMENT_REFUSED, f"spec.engine.env: {problem}") if problem else None


def check_images(given: CheckInput) -> Refusal | None:
    """Make sure that images come from where the cluster's administrator lets them come from."""
    images = {"spec.engine.image": given.spec.engine.image, "spec.gateway.image": given.spec.gateway.image}
    for path, image in images.items():
        if image is None or not given.image_prefixes or any(_lies_below(image, prefix) for prefix in given.image_prefixes):
            continue
        return Refusal(
            AcceptedReason.IMAGE_REFUSED,
            f"{path}: this operator runs only images of {' and '.join(given.image_prefixes)}: use one, or leave image out",
        )
    return None


def check_model_path(given: CheckInput) -> Refusal | None:
    """Make sure that no engine takes the kernel's trees, or blockwarden's own files, for weights."""
    path = given.spec.model.source.path
    if path is None or not holds_no_weights(path):
        return None
    return Refusal(
        AcceptedReason.MODEL_SOURCE_REFUSED,
        f"spec.model.source.path: {path} holds no weights: name a directory of the engine image",
    )


def check_model_source(given: CheckInput) -> Refusal | None:
    """Make sure that the volume with the weights is there."""
    claim = given.spec.model.source.persistent_volume_claim
    if claim is None or claim.name in given.volume_claims:
        return None
    return Refusal(
        AcceptedReason.MODEL_SOURCE_MISSING,
        f"spec.model.source.persistentVolumeClaim.name: PersistentVolumeClaim {claim.name} does not exist in this namespace: "
        "create it, or name another",
    )


def check_secrets_exist(given: CheckInput) -> Refusal | None:
    """Make sure that the Secrets which pods mount are there, with the keys that they need."""
    for reference in _required_secrets(given.spec):
        secret = given.referenced.get(reference.name)
        if secret is None:
            return Refusal(
                AcceptedReason.SECRET_MISSING,
                f"{reference.path}: Secret {reference.name} does not exist in this namespace: create it, or name another",
            )
        for key in reference.keys:
            if not (secret.get("data") or {}).get(key):
                return Refusal(
                    AcceptedReason.SECRET_MISSING,
                    f"{reference.path}: Secret {reference.name} has no key {key}, or an empty one: add it, or name another",
                )
    return None


def check_secrets_are_the_users(given: CheckInput) -> Refusal | None:
    """Make sure that no reference leads one of blockwarden's own Secrets into a pod that must not have it."""
    for reference in secret_references(given.spec):
        secret = given.referenced.get(reference.name)
        if secret is not None and _is_ours(secret):
            return Refusal(
                AcceptedReason.SECRET_REFUSED,
                f"{reference.path}: Secret {reference.name} is blockwarden's own and mounted nowhere else: name one of yours",
            )
    return None


def check_object_names(given: CheckInput) -> Refusal | None:
    """Make sure that nobody's object is overwritten because it has the name of one of ours."""
    if not given.foreign:
        return None
    return Refusal(
        AcceptedReason.OBJECT_NAME_TAKEN,
        f"metadata.name: {given.foreign[0]} exists and is not this TenantPolicy's: remove it, or rename the TenantPolicy",
    )


CHAIN: Final[tuple[Check, ...]] = (
    check_object_names,
    check_tenant_names,
    check_scopes,
    check_users,
    check_percentages,
    check_pool,
    check_shared_units,
    check_model_length,
    check_engine_arguments,
    check_adapters,
    check_engine_environment,
    check_external_cache,
    check_images,
    check_model_path,
    check_secrets_are_the_users,
    check_secrets_exist,
    check_model_source,
)
"""From what would harm others to what only does not work yet."""


def check_objects(refused: Sequence[RefusedObject]) -> Refusal | None:
    """Make sure that the apiserver takes what follows from the spec; only the first of several is named."""
    if not refused:
        return None
    first = refused[0]
    field = _FIELD_OF_COMPONENT.get(first.component, "spec")
    at = f" at {', '.join(first.fields)}" if first.fields else ""
    return Refusal(
        AcceptedReason.OBJECT_REFUSED,
        f"{field}: {first.kind} {first.name} is refused by the apiserver ({first.reason}{at}): mend that in {field}, "
        "or what forbids it (a quota, an admission webhook, the operator's rights)",
    )


def _required_secrets(spec: TenantPolicySpec) -> Iterator[SecretReference]:
    """The Secrets without which pods cannot run."""
    hub = spec.model.source.hugging_face
    if hub is not None and (token := hub.token_secret_ref) is not None:
        yield SecretReference("spec.model.source.huggingFace.tokenSecretRef", token.name, (token.key,))
    if (tls := spec.gateway.tls) is not None:
        yield SecretReference("spec.gateway.tls.secretName", tls.secret_name, (layout.TLS_CERT, layout.TLS_KEY))


def _api_key_secrets(spec: TenantPolicySpec) -> Iterator[SecretReference]:
    for tenant in spec.tenants:
        for key in tenant.api_keys:
            path = f"spec.tenants[{tenant.name}].apiKeys[{key.name}].secretRef"
            yield SecretReference(path, key.secret_ref.name, (key.secret_ref.key,))


def _lies_below(image: str, prefix: str) -> bool:
    """Whether the image is of that registry, folder or repository; `registry/team` does not admit `registry/team-of-others`."""
    return image.startswith(tuple(prefix.rstrip("/") + separator for separator in "/:@"))


def _is_ours(secret: Mapping[str, Any]) -> bool:
    metadata = secret.get("metadata") or {}
    owners = metadata.get("ownerReferences") or ()
    return (metadata.get("labels") or {}).get(MANAGED_BY_LABEL) == FIELD_MANAGER or any(
        owner.get("kind") == "TenantPolicy" for owner in owners
    )


def _over_quota(message: str) -> Refusal:
    return Refusal(AcceptedReason.QUOTA_EXCEEDED, message)
