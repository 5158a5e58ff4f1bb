"""Every CEL rule on a real kube-apiserver: what it refuses, with which message, and what it lets pass."""

from __future__ import annotations

import copy
from typing import Any, Protocol

import pytest

from blockwarden_core import engine_args, unsafe
from blockwarden_operator.crd import render_crd

pytestmark = pytest.mark.integration
Manifest = dict[str, Any]
ABSENT = object()
PATH = {"model": {"name": "m", "source": {"path": "/models/m"}}}
KEY = {"name": "laptop", "secretRef": {"name": "keys", "key": "ann"}}


class Serves(Protocol):
    """What these tests need of the cluster fixture."""

    def create(self, manifest: Manifest, *, dry_run: bool = False, strict: bool = False) -> Manifest: ...
    def replace(self, manifest: Manifest) -> Manifest: ...


def tenant(name: str = "acme", guaranteed: int | str = "50%", **parts: Any) -> Manifest:
    return {"name": name, "kvCache": {"guaranteed": guaranteed}, **parts}


def share(guaranteed: int | str, limit: int | str) -> Manifest:
    return {"tenants": [{"name": "acme", "kvCache": {"guaranteed": guaranteed, "limit": limit}}]}


def args(*items: str) -> Manifest:
    return {"engine": {"extraArgs": list(items)}}


def env(name: str, value: str) -> Manifest:
    return {"engine": {"env": [{"name": name, "value": value}]}}


def template(**parts: Any) -> Manifest:
    return {"engine": {"template": parts}}


def peers(*of: Manifest) -> Manifest:
    return {"gateway": {"allowFrom": list(of)}}


def transfer(**parts: Any) -> Manifest:
    return {"engine": {"kvTransfer": parts}}


def named(name: str) -> Manifest:
    return {"metadata": {"name": name}}


REFUSED: dict[str, tuple[Manifest, str]] = {
    "a name too long for Services": (
        named("a" * 41),
        "metadata.name: Services and certificates are named after it: use at most 40",
    ),
    "a name that no Service can begin with": (named("1-llama"), "metadata.name: Services and certificates"),
    "a name with a dot": (named("a.b"), "metadata.name: Services and certificates"),
    "no source": ({"model": {"name": "m", "source": {}}}, "spec.model.source: names no source or several: set exactly one"),
    "two sources": (
        {"model": {"name": "m", "source": {"path": "/m", "persistentVolumeClaim": {"name": "w"}}}},
        "spec.model.source: names no source or several: set exactly one",
    ),
    "the kernel's trees as weights": (
        {"model": {"name": "m", "source": {"path": "/proc/self"}}},
        "spec.model.source.path: /proc, /sys, /dev, /etc/blockwarden hold no weights: name a directory of the engine image",
    ),
    "the keys' mount as weights": (
        {"model": {"name": "m", "source": {"path": "/etc/blockwarden"}}},
        "spec.model.source.path: /proc, /sys, /dev, /etc/blockwarden hold no weights",
    ),
    "a resource that has no name": (
        {"engine": {"resources": {"limits": {"memory": "8Gi", "!!": "1"}}}},
        "resources: a name is not that of a resource: use cpu",
    ),
    "a resource of nobody": ({"gateway": {"resources": {"requests": {"gpu": 1}}}}, "resources: a name is not that of a resource"),
    "a request above its limit": (
        {"gateway": {"resources": {"requests": {"cpu": 9}, "limits": {"cpu": 1}}}},
        "resources.requests: a request is above its limit: lower it",
    ),
    "a request above its limit in other units": (
        {"engine": {"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "2047Mi"}}}},
        "resources.requests: a request is above its limit",
    ),
    "an image without a tag": (
        {"engine": {"image": "registry.example/engine"}},
        "image: names a moving image: end it with a version tag",
    ),
    "an image without a tag behind a port": (
        {"engine": {"image": "registry.example:5000/engine"}},
        "image: names a moving image",
    ),
    "the image of the day": ({"gateway": {"image": "registry.example/gateway:latest"}}, "image: names a moving image"),
    "an argument over two items": (args("--seed", "17 "), "spec.engine.extraArgs: an item is not one argument: write each as"),
    "a short option": (args("-O3"), "spec.engine.extraArgs: an item is not one argument"),
    "an argument with underscores": (args("--max_num_seqs=8"), "spec.engine.extraArgs: an item is not one argument"),
    "a nested argument": (args("--hf-overrides.a=1"), "spec.engine.extraArgs: an item is not one argument"),
    "an argument that has a field": (
        args("--dtype=float32"),
        "spec.engine.extraArgs: an argument has a field of its own: use that",
    ),
    "an argument twice": (args("--seed=1", "--seed=2"), "spec.engine.extraArgs: an argument is given twice: keep one"),
    "an argument with another one in its value": (
        args("--seed=1\n--enable-log-requests"),
        "is not one that keeps isolation (the first is --seed): remove it",
    ),
    "a value that no flag takes": (
        args("--seed=x"),
        "spec.engine.extraArgs: an argument, or its value, is not one that keeps isolation",
    ),
    "a value that loads a pickle": (
        args("--load-format=pt"),
        "is not one that keeps isolation (the first is --load-format): remove it",
    ),
    "two arguments of a kind": (
        args("--seed=1", "--api-key=hunter2", "--enable-log-requests"),
        "spec.engine.extraArgs: an argument, or its value, is not one that keeps isolation (the first is --api-key): remove it",
    ),
    "a stray value, which might be a credential": (
        args("--seed=1", "hunter2"),
        "keeps isolation (the first is ): remove it; allowed",
    ),
    "a context into which the attestation does not fit": (
        {"engine": {"maxModelLen": 320}},
        "spec.engine.maxModelLen: engines are attested with a request of 321 tokens: set at least 321, or leave it out",
    ),
    "debug logging": (env("VLLM_LOGGING_LEVEL", "DEBUG"), "spec.engine.env: the value is not one that this variable may have"),
    "a preloaded library": (
        env("LD_PRELOAD", "/x.so"),
        "spec.engine.env: the variable is not one that keeps isolation: remove it",
    ),
    "a label that Services select": (template(labels={"app.kubernetes.io/component": "gateway"}), "template.labels: keys under"),
    "a label of ours": (template(labels={"blockwarden.dev/x": "y"}), "template.labels: keys under"),
    "the Deployment's label": (template(labels={"pod-template-hash": "y"}), "template.labels: keys under"),
    "a second network interface": (
        template(annotations={"k8s.v1.cni.cncf.io/networks": "x"}),
        "template.annotations: prefixed keys",
    ),
    "an injector": (template(annotations={"sidecar.istio.io/inject": "true"}), "template.annotations: prefixed keys"),
    "a peer that is nobody": (peers({}), "allowFrom: a peer is an ipBlock or selectors: set"),
    "a peer that is two things": (
        peers({"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}),
        "allowFrom: a peer is an ipBlock",
    ),
    "another connector's switch": (
        transfer(connector="Offloading", requireCacheSalt=True),
        "spec.engine.kvTransfer: requireCacheSalt and keyNamespace are switches of connector FusIOnX: remove them",
    ),
    "another connector's namespace": (transfer(connector="MooncakeStore", keyNamespace="a"), "are switches of connector FusIOnX"),
    "a store in the pod for a cache outside": (
        transfer(connector="FusIOnX", cpuBytes=2**30),
        "spec.engine.kvTransfer.cpuBytes: only Offloading and SimpleCPUOffload keep blocks in the pod: remove it",
    ),
    "a reserved tenant": ({"tenants": [tenant("canary")]}, "spec.tenants[].name: canary and shared are reserved"),
    "the other reserved tenant": ({"tenants": [tenant("shared")]}, "spec.tenants[].name: canary and shared are reserved"),
    "a widened scope": (
        {"isolation": {"scope": "User"}, "tenants": [tenant(scope="Tenant")]},
        "spec.tenants[].scope: is wider than",
    ),
    "scope None beneath Tenant": (
        {"tenants": [tenant(scope="None")]},
        "spec.tenants[].scope: is wider than spec.isolation.scope",
    ),
    "scope User with a generated key": (
        {"tenants": [tenant(scope="User")]},
        "spec.tenants[].apiKeys: scope User needs keys that name",
    ),
    "scope User with a nameless key": (
        {"tenants": [tenant(scope="User", apiKeys=[KEY])]},
        "set user on every API key of the tenant",
    ),
    "scope User from the policy": ({"isolation": {"scope": "User"}}, "spec.tenants[].apiKeys: scope User needs keys that name"),
    "percentages above the whole": (
        {"tenants": [tenant("a", "60%"), tenant("b", "41%")]},
        "spec.tenants[].kvCache.guaranteed: the percentages add up to more than 100%: lower them",
    ),
    "blocks above the pool": (
        {"engine": {"kvCache": {"blocks": 100}}, "tenants": [tenant("a", 60), tenant("b", 40)]},
        "spec.tenants[].kvCache.guaranteed: they leave none of spec.engine.kvCache.blocks: lower them or raise blocks",
    ),
    "two units": (share("50%", 100), "spec.tenants[].kvCache: guaranteed and limit have different units: write both in blocks"),
    "a limit below the guarantee": (share("50%", "49%"), "spec.tenants[].kvCache.limit: is below guaranteed: raise limit"),
    "a limit below the guarantee, in blocks": (share(1000, 999), "spec.tenants[].kvCache.limit: is below guaranteed"),
    "members of one quota in two units": (
        {"isolation": {"scope": "None"}, "tenants": [tenant("a", "10%"), tenant("b", 10)]},
        "spec.tenants[].kvCache: tenants of scope None share one quota, and theirs mix blocks with percentages: use one unit",
    ),
    "no block at all": (
        {"tenants": [tenant(guaranteed="0%")]},
        "spec.tenants[].kvCache: the tenant may hold no block at all: raise",
    ),
    "no block at all, in blocks": (share(0, 0), "spec.tenants[].kvCache: the tenant may hold no block at all"),
}
ACCEPTED: dict[str, Manifest] = {
    "a name of 40 characters": named("a" * 40),
    "weights in the image": PATH,
    "weights beneath a name that only begins like the kernel's": {"model": {"name": "m", "source": {"path": "/device/m"}}},
    "resources of every kind": {
        "engine": {
            "resources": {
                "requests": {"cpu": "500m", "memory": "1Gi", "hugepages-2Mi": "4Mi", "ephemeral-storage": 5},
                "limits": {"cpu": 1, "memory": "1024Mi", "hugepages-2Mi": "4Mi", "nvidia.com/gpu": 1},
            }
        }
    },
    "an image by digest": {"engine": {"image": "registry.example:5000/engine@sha256:" + "0" * 64}},
    "an image without a registry": {"gateway": {"image": "gateway:0.1.0"}},
    "labels and annotations of one's own": template(
        labels={"team": "a", "example.com/cost-centre": "7"},
        annotations={
            "note": "x",
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            "karpenter.sh/do-not-disrupt": "true",
        },
    ),
    "the shortest context that can be attested": {"engine": {"maxModelLen": 321}},
    "every kind of peer": peers(
        {"podSelector": {}},
        {"namespaceSelector": {}},
        {"podSelector": {}, "namespaceSelector": {}},
        {"ipBlock": {"cidr": "fd00::/8"}},
    ),
    "FusIOnX with its switches": transfer(connector="FusIOnX", requireCacheSalt=True, keyNamespace="prod"),
    "a store in the pod": transfer(connector="SimpleCPUOffload", cpuBytes=2**30),
    "a narrower scope": {"tenants": [tenant(scope="Request"), tenant("b", scope="Session")]},
    "scope None for everybody": {"isolation": {"scope": "None"}, "tenants": [tenant(scope="None"), tenant("b", scope="Tenant")]},
    "scope User with users": {"tenants": [tenant(scope="User", apiKeys=[{**KEY, "user": "ann"}])]},
    "the whole pool": {"tenants": [tenant("a", "60%"), tenant("b", "40%")]},
    "blocks and percentages side by side": {
        "engine": {"kvCache": {"blocks": 100}},
        "tenants": [tenant("a", 60), tenant("b", "100%")],
    },
    "a borrower": share("0%", "30%"),
    "a borrower in blocks": share(0, 30),
    "as many tenants as there may be": {"tenants": [tenant(f"t{number}", "1%") for number in range(100)]},
}


def changed(minimal: Manifest, change: Manifest) -> Manifest:
    metadata = {**minimal["metadata"], **change.get("metadata", {})}
    parts = {name: part for name, part in change.items() if name != "metadata"}
    return {**minimal, "metadata": metadata, "spec": {**minimal["spec"], **PATH, **parts}}


@pytest.mark.parametrize("sentence", REFUSED)
def test_refuses(server: Serves, refused: Any, minimal: Manifest, sentence: str) -> None:
    change, message = REFUSED[sentence]
    with pytest.raises(refused) as answer:
        server.create(changed(minimal, change), dry_run=True)
    assert message in answer.value.text
    assert not any(secret in text for _, text in answer.value.causes for secret in ("hunter2",))


@pytest.mark.parametrize("amount", ["1.5%", "lots", "%", "", -1, 2**62])
def test_what_the_schema_refuses_makes_no_rule_fail(server: Serves, refused: Any, minimal: Manifest, amount: Any) -> None:
    """Rules run on refused values too: an error of theirs, or a wrong word, would be added to the refusal."""
    for change in ({"tenants": [tenant(guaranteed=amount)]}, share(amount, amount), share(10, amount), share(amount, 10)):
        with pytest.raises(refused) as answer:
            server.create(changed(minimal, change), dry_run=True)
        assert "kvCache." in answer.value.text
        for noise in ("conversion", "evaluat", "no block at all", "is below guaranteed", "add up"):
            assert noise not in answer.value.text


@pytest.mark.parametrize("sentence", REFUSED)
def test_without_the_rules_the_same_policy_is_taken(lax: Any, minimal: Manifest, sentence: str) -> None:
    """The broken twin: it is the rule that refuses, and nothing else in the schema."""
    manifest = {**changed(minimal, REFUSED[sentence][0]), "apiVersion": f"{lax.group}/v1alpha1"}
    assert lax.create(manifest, dry_run=True)["metadata"]["uid"]


@pytest.mark.parametrize("sentence", ACCEPTED)
def test_accepts(server: Serves, minimal: Manifest, sentence: str) -> None:
    created = server.create(changed(minimal, ACCEPTED[sentence]), dry_run=True, strict=True)
    assert created["metadata"]["uid"]


@pytest.mark.parametrize("name", unsafe.FLAGS)
def test_refuses_every_forbidden_argument(server: Serves, refused: Any, minimal: Manifest, name: str) -> None:
    for spelling in (f"--{name}", f"--{name}=1"):
        with pytest.raises(refused, match=rf"is not one that keeps isolation \(the first is --{name}\): remove it"):
            server.create(changed(minimal, args(spelling)), dry_run=True)


VALUES = {engine_args.COUNT: "7", engine_args.NUMBER: "0.5", engine_args.WORD: "fp8", "[0-3]": "2"}


def test_accepts_every_allowed_argument(server: Serves, minimal: Manifest) -> None:
    items = [
        f"--{name}" + (f"={VALUES.get(pattern, pattern.split('|')[0])}" if pattern else "")
        for name, pattern in engine_args.EXTRA_ARGS.items()
    ]
    assert engine_args.refusal(items) is None
    assert server.create(changed(minimal, args(*items)), dry_run=True)["spec"]["engine"]["extraArgs"] == items


def test_what_is_too_much_for_the_list_is_refused_before_any_rule_runs(server: Serves, refused: Any, minimal: Manifest) -> None:
    with pytest.raises(refused, match="must have at most 32 items"):
        server.create(changed(minimal, args(*["--seed=1"] * 33)), dry_run=True)


def test_the_models_name_cannot_change(cluster: Serves, refused: Any, minimal: Manifest) -> None:
    created = cluster.create(changed(minimal, {}))
    renamed = copy.deepcopy(created)
    renamed["spec"]["model"]["name"] = "another"
    with pytest.raises(refused, match=r"spec\.model\.name: cannot be changed, .*: create another TenantPolicy"):
        cluster.replace(renamed)
    created["spec"]["model"]["source"] = {"path": "/models/next"}
    assert cluster.replace(created)["metadata"]["generation"] == 2


def test_weights_under_an_external_cache_change_only_with_its_namespace(cluster: Serves, refused: Any, minimal: Manifest) -> None:
    fusionx = {"connector": "FusIOnX", "keyNamespace": "one"}
    created = cluster.create(changed(minimal, transfer(**fusionx)))
    moved = copy.deepcopy(created)
    moved["spec"]["model"]["source"] = {"path": "/models/next"}
    with pytest.raises(refused, match=r"spec\.model\.source: the external cache of spec\.engine\.kvTransfer holds blocks"):
        cluster.replace(moved)
    moved["spec"]["engine"]["kvTransfer"]["keyNamespace"] = "two"
    assert cluster.replace(moved)["metadata"]["generation"] == 2


def test_every_rule_has_a_policy_that_it_refuses() -> None:
    root = render_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    expected = [message for _, message in REFUSED.values()]
    transitions = {"spec.model.name: cannot be changed", "spec.model.source: the external cache"}
    untested = [
        message
        for message in messages(root)
        if not any(text in message for text in expected) and not message.startswith(tuple(transitions))
    ]
    assert untested == []


def messages(node: Any) -> list[str]:
    own = [rule["message"] for rule in node.get("x-kubernetes-validations", ())]
    children = [*node.get("properties", {}).values(), node.get("items"), node.get("additionalProperties")]
    return own + [text for child in children if isinstance(child, dict) for text in messages(child)]
