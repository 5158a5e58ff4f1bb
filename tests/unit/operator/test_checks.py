"""When a TenantPolicy may be taken into force, one sentence each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blockwarden_operator.api import AcceptedReason, TenantPolicySpec
from blockwarden_operator.checks import CHAIN, CheckInput, Refusal, check_spec, secret_references
from blockwarden_operator.render.names import Owner
from blockwarden_operator.render.shares import render_gateway_policy

Manifest = dict[str, Any]
KEY = {"name": "laptop", "secretRef": {"name": "acme-keys", "key": "ann"}}


def spec(*, tenants: list[Manifest] | None = None, **parts: Any) -> TenantPolicySpec:
    return TenantPolicySpec.model_validate(
        {"model": {"name": "llama", "source": {"path": "/models/llama"}}, "tenants": tenants or [tenant()], **parts}
    )


def tenant(name: str = "acme", guaranteed: int | str = "50%", **parts: Any) -> Manifest:
    return {"name": name, "kvCache": {"guaranteed": guaranteed}, **parts}


def secret(*keys: str, owner: str | None = None, **labels: str) -> Manifest:
    owners = [{"kind": owner, "name": "other"}] if owner else []
    return {"metadata": {"labels": labels, "ownerReferences": owners}, "data": {key: "eA==" for key in keys}}


TLS = spec(gateway={"tls": {"secretName": "public"}})
GATED = spec(model={"name": "m", "source": {"huggingFace": {"repo": "a/b", "tokenSecretRef": {"name": "hub", "key": "token"}}}})
CLAIM = spec(model={"name": "m", "source": {"persistentVolumeClaim": {"name": "weights"}}})
IMAGE = spec(engine={"image": "registry.example/team-evil/engine:1"})
TIGHT = spec(engine={"kvCache": {"blocks": 100}}, tenants=[tenant("a", 60), tenant("b", 40)])

ADAPTED = spec(
    engine={"extraArgs": ["--enable-lora", "--lora-modules=legal-lora=/models/adapters/legal"]},
    tenants=[tenant(models=[{"name": "legal", "adapter": "legal-lora"}])],
)

ACCEPTED = {
    "a small policy": CheckInput(spec()),
    "a name for an adapter that engines load": CheckInput(ADAPTED),
    "weights beneath a name that only begins like the kernel's": CheckInput(
        spec(model={"name": "m", "source": {"path": "/device/m"}})
    ),
    "a policy whose guarantees are the whole pool": CheckInput(spec(tenants=[tenant("a", "60%"), tenant("b", "40%")])),
    "the shortest context that can be attested": CheckInput(spec(engine={"maxModelLen": 321})),
    "a pool that its numbers of blocks fill": CheckInput(TIGHT),
    "a borrower that is guaranteed nothing": CheckInput(
        spec(tenants=[{"name": "a", "kvCache": {"guaranteed": "0%", "limit": "9%"}}])
    ),
    "scope User with keys that name users": CheckInput(spec(tenants=[tenant(scope="User", apiKeys=[{**KEY, "user": "ann"}])])),
    "an API key's Secret that is missing: that key alone stops working": CheckInput(
        spec(tenants=[tenant(apiKeys=[KEY])]), referenced={"acme-keys": None}
    ),
    "a TLS Secret with both keys": CheckInput(TLS, referenced={"public": secret("tls.crt", "tls.key")}),
    "a token that is there": CheckInput(GATED, referenced={"hub": secret("token")}),
    "a volume that is there": CheckInput(CLAIM, volume_claims=frozenset({"weights"})),
    "any image where no list is set": CheckInput(IMAGE),
    "an image of an allowed repository": CheckInput(IMAGE, image_prefixes=("registry.example/team-evil/engine",)),
    "an image below an allowed folder": CheckInput(IMAGE, image_prefixes=("other.example", "registry.example/team-evil/")),
    "no image, whatever list is set": CheckInput(spec(), image_prefixes=("other.example",)),
}

REFUSED = {
    "a tenant with the name of the probes' tenant": (
        CheckInput(spec(tenants=[tenant("canary")])),
        AcceptedReason.NAME_RESERVED,
        "spec.tenants[canary].name: is reserved for blockwarden itself: choose another name",
    ),
    "a tenant that widens the policy's scope": (
        CheckInput(spec(isolation={"scope": "User"}, tenants=[tenant(scope="Tenant")])),
        AcceptedReason.SCOPE_WIDENED,
        "spec.tenants[acme].scope: Tenant is wider than spec.isolation.scope: use User or a narrower one",
    ),
    "scope User with a key without a user": (
        CheckInput(spec(tenants=[tenant(scope="User", apiKeys=[KEY])])),
        AcceptedReason.USER_MISSING,
        "spec.tenants[acme].apiKeys[laptop].user: is missing, and scope User needs it: set it",
    ),
    "scope User from the policy with a generated key": (
        CheckInput(spec(isolation={"scope": "User"})),
        AcceptedReason.USER_MISSING,
        "spec.tenants[acme].apiKeys: a generated key names no user, and scope User needs one: "
        "list a key with its user for everybody",
    ),
    "a context into which the attestation does not fit": (
        CheckInput(spec(engine={"maxModelLen": 320})),
        AcceptedReason.ENGINE_ARGUMENT_REFUSED,
        "spec.engine.maxModelLen: is 320, and engines are attested with a request of 321 tokens: "
        "set at least 321, or leave it out",
    ),
    "percentages above the whole": (
        CheckInput(spec(tenants=[tenant("a", "60%"), tenant("b", "41%")])),
        AcceptedReason.QUOTA_EXCEEDED,
        "spec.tenants[].kvCache.guaranteed: the percentages add up to 101%: lower them to 100% together",
    ),
    "numbers of blocks that leave none for the probes": (
        CheckInput(TIGHT, reserved_blocks=8),
        AcceptedReason.QUOTA_EXCEEDED,
        "spec.tenants[].kvCache.guaranteed: with 8 blocks for blockwarden's own probes they are 8 more than the 100 of "
        "spec.engine.kvCache.blocks: lower them or raise blocks",
    ),
    "a percentage that rounds down to no block": (
        CheckInput(spec(engine={"kvCache": {"blocks": 100}}, tenants=[tenant("a", 60), tenant("b", "2%")])),
        AcceptedReason.QUOTA_EXCEEDED,
        "spec.tenants[b].kvCache: 2% of the 40 blocks left is no block at all: raise it, or spec.engine.kvCache.blocks",
    ),
    "tenants of scope None whose quotas cannot be added up": (
        CheckInput(spec(isolation={"scope": "None"}, tenants=[tenant("a", 60), tenant("b", "40%")])),
        AcceptedReason.QUOTA_EXCEEDED,
        "spec.tenants[].kvCache: tenants of scope None share one quota, and theirs mix blocks with percentages: use one unit",
    ),
    "an engine argument that logs prompts": (
        CheckInput(spec(engine={"extraArgs": ["--enable-log-requests"]})),
        AcceptedReason.ENGINE_ARGUMENT_REFUSED,
        "spec.engine.extraArgs: --enable-log-requests is refused (it writes tenants' prompts to the log): remove it",
    ),
    "an adapter that engines do not load": (
        CheckInput(spec(tenants=[tenant(models=[{"name": "legal", "adapter": "legal-lora"}])])),
        AcceptedReason.ENGINE_ARGUMENT_REFUSED,
        "spec.tenants[acme].models[legal].adapter: engines load no adapter legal-lora: "
        "set --enable-lora and --lora-modules=legal-lora=<directory> in spec.engine.extraArgs",
    ),
    "an external cache that nobody has shown to keep tenants apart": (
        CheckInput(spec(engine={"kvTransfer": {"connector": "Offloading"}})),
        AcceptedReason.ENGINE_ARGUMENT_REFUSED,
        "spec.engine.kvTransfer: no external KV cache has been shown to keep tenants apart together with the tenants' "
        "block pool: remove it",
    ),
    "a variable that opens vLLM's development routes": (
        CheckInput(spec(engine={"env": [{"name": "VLLM_SERVER_DEV_MODE", "value": "1"}]})),
        AcceptedReason.ENVIRONMENT_REFUSED,
        "spec.engine.env: VLLM_SERVER_DEV_MODE is not an environment variable that blockwarden lets through: remove it",
    ),
    "the kernel's trees as weights": (
        CheckInput(spec(model={"name": "m", "source": {"path": "/proc/self"}})),
        AcceptedReason.MODEL_SOURCE_REFUSED,
        "spec.model.source.path: /proc/self holds no weights: name a directory of the engine image",
    ),
    "the keys' mount as weights": (
        CheckInput(spec(model={"name": "m", "source": {"path": "/etc/blockwarden"}})),
        AcceptedReason.MODEL_SOURCE_REFUSED,
        "spec.model.source.path: /etc/blockwarden holds no weights: name a directory of the engine image",
    ),
    "an image of a neighbour with a longer name": (
        CheckInput(IMAGE, image_prefixes=("registry.example/team",)),
        AcceptedReason.IMAGE_REFUSED,
        "spec.engine.image: this operator runs only images of registry.example/team: use one, or leave image out",
    ),
    "a TLS Secret that is missing": (
        CheckInput(TLS, referenced={"public": None}),
        AcceptedReason.SECRET_MISSING,
        "spec.gateway.tls.secretName: Secret public does not exist in this namespace: create it, or name another",
    ),
    "a TLS Secret without its key": (
        CheckInput(TLS, referenced={"public": secret("tls.crt")}),
        AcceptedReason.SECRET_MISSING,
        "spec.gateway.tls.secretName: Secret public has no key tls.key, or an empty one: add it, or name another",
    ),
    "a token Secret with an empty value": (
        CheckInput(GATED, referenced={"hub": {"data": {"token": ""}}}),
        AcceptedReason.SECRET_MISSING,
        "spec.model.source.huggingFace.tokenSecretRef: Secret hub has no key token, or an empty one: add it, or name another",
    ),
    "a token that is this operator's own Secret": (
        CheckInput(GATED, referenced={"hub": secret("token", **{"app.kubernetes.io/managed-by": "blockwarden-operator"})}),
        AcceptedReason.SECRET_REFUSED,
        "spec.model.source.huggingFace.tokenSecretRef: Secret hub is blockwarden's own and mounted nowhere else: "
        "name one of yours",
    ),
    "a TLS Secret that is another policy's, its labels gone": (
        CheckInput(TLS, referenced={"public": secret("tls.crt", "tls.key", owner="TenantPolicy")}),
        AcceptedReason.SECRET_REFUSED,
        "spec.gateway.tls.secretName: Secret public is blockwarden's own and mounted nowhere else: name one of yours",
    ),
    "an API key that is another policy's key material": (
        CheckInput(spec(tenants=[tenant(apiKeys=[KEY])]), referenced={"acme-keys": secret("ann", owner="TenantPolicy")}),
        AcceptedReason.SECRET_REFUSED,
        "spec.tenants[acme].apiKeys[laptop].secretRef: Secret acme-keys is blockwarden's own and mounted nowhere else: "
        "name one of yours",
    ),
    "a volume that is missing": (
        CheckInput(CLAIM),
        AcceptedReason.MODEL_SOURCE_MISSING,
        "spec.model.source.persistentVolumeClaim.name: PersistentVolumeClaim weights does not exist in this namespace: "
        "create it, or name another",
    ),
    "somebody's object with the name of one of ours": (
        CheckInput(spec(), foreign=("Service llama-gateway",)),
        AcceptedReason.OBJECT_NAME_TAKEN,
        "metadata.name: Service llama-gateway exists and is not this TenantPolicy's: remove it, or rename the TenantPolicy",
    ),
}  # fmt: skip


def test_a_name_for_an_adapter_reaches_gateways_as_the_engines_name_of_it() -> None:
    policy = render_gateway_policy(ADAPTED, Owner("demo", "ns", "uid-1"), 1)
    assert [(alias.name, alias.served) for alias in policy.tenants[0].models] == [("legal", "legal-lora")]


@pytest.mark.parametrize("sentence", ACCEPTED)
def test_accepts(sentence: str) -> None:
    assert check_spec(ACCEPTED[sentence]) is None


@pytest.mark.parametrize("sentence", REFUSED)
def test_refuses(sentence: str) -> None:
    given, reason, message = REFUSED[sentence]
    assert check_spec(given) == Refusal(reason, message)


@pytest.mark.parametrize("check", CHAIN, ids=lambda check: check.__name__)
def test_no_check_is_idle(check: Any) -> None:
    """The broken twin of the chain: with one check left out, something that must be refused is not."""
    rest = [other for other in CHAIN if other is not check]
    survivors = [s for s, (given, _, _) in REFUSED.items() if not any(other(given) for other in rest)]
    assert survivors != []


def test_what_harms_others_is_said_before_what_does_not_work_yet() -> None:
    both = replace(REFUSED["a TLS Secret that is missing"][0], foreign=("Service llama-gateway",))
    refusal = check_spec(both)
    assert refusal is not None
    assert refusal.reason is AcceptedReason.OBJECT_NAME_TAKEN


def test_a_gatherer_learns_every_secret_that_a_spec_names() -> None:
    full = spec(
        model={"name": "m", "source": {"huggingFace": {"repo": "a/b", "tokenSecretRef": {"name": "hub", "key": "token"}}}},
        gateway={"tls": {"secretName": "public"}},
        tenants=[tenant(apiKeys=[KEY])],
    )
    assert [(reference.name, reference.keys) for reference in secret_references(full)] == [
        ("hub", ("token",)),
        ("public", ("tls.crt", "tls.key")),
        ("acme-keys", ("ann",)),
    ]


def test_secrets_do_not_show_in_the_inputs_text() -> None:
    assert "eA==" not in repr(CheckInput(GATED, referenced={"hub": secret("token")}))
