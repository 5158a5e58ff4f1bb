"""The engines: Deployment, headless Service, ServiceAccount, ConfigMap; and the Job that fetches their weights.

Only arguments from core's allow-list are rendered. What isolation itself needs (scheduler, worker, middleware, mutual TLS, hash
algorithm) is the launcher's to add: it is part of the image, not of anything that a TenantPolicy could say.
"""

from __future__ import annotations

from posixpath import dirname
from typing import Final

from blockwarden_core import layout
from blockwarden_core.kv_transfer import render_kv_transfer
from blockwarden_core.unsafe import KV_EVENTS_CONFIG
from blockwarden_operator.api import TenantPolicySpec

from .names import API_PORT_NAME, INTERNAL_PORT_NAME, Component, Manifest, Owner, render_object
from .names import labels as component_labels
from .pods import CONTAINER_SECURITY, TMP, config_volume, identity_env, mount, probe, render_pod, secret_volume
from .weights import MODELS, model_path, weights_claim

POLICY_FILE: Final = layout.ENGINE_POLICY.removeprefix("policy/")
GRACE_SECONDS: Final = 60
START_SECONDS: Final = 3600
"""How long weights may take to load before kubelet gives up on an engine."""


def render_engine(owner: Owner) -> list[Manifest]:
    """The objects around the engines, save what they mount."""
    service = {
        # Headless: gateways resolve every engine and choose among the attested ones themselves.
        "clusterIP": "None",
        "selector": component_labels(owner, Component.ENGINE),
        "ports": [{"name": API_PORT_NAME, "port": layout.ENGINE_API_PORT, "targetPort": API_PORT_NAME, "protocol": "TCP"}],
    }
    return [
        render_object("ServiceAccount", owner, owner.engine, Component.ENGINE, {"automountServiceAccountToken": False}),
        render_object("Service", owner, owner.engine, Component.ENGINE, {"spec": service}),
    ]


def render_engine_config(owner: Owner, sealed: str) -> Manifest:
    """The ConfigMap with the sealed document that the engines enforce."""
    return render_object("ConfigMap", owner, owner.engine, Component.ENGINE, {"data": {POLICY_FILE: sealed}})


def render_engine_deployment(spec: TenantPolicySpec, owner: Owner, *, default_image: str) -> Manifest:
    """The Deployment of the engines."""
    body = {
        "replicas": spec.engine.replicas,
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": START_SECONDS,
        # One at a time and never one more: a surge pod would wait for GPUs that the pod which it replaces still holds.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        "selector": {"matchLabels": component_labels(owner, Component.ENGINE)},
        "template": render_pod(
            owner,
            Component.ENGINE,
            spec.engine.template,
            {
                "serviceAccountName": owner.engine,
                "terminationGracePeriodSeconds": GRACE_SECONDS,
                "containers": [_container(spec, owner, default_image)],
                "volumes": _volumes(spec, owner),
            },
        ),
    }
    return render_object("Deployment", owner, owner.engine, Component.ENGINE, {"spec": body}, api_version="apps/v1")


def engine_args(spec: TenantPolicySpec) -> list[str]:
    """The launcher's arguments, each one item."""
    engine = spec.engine
    values = {
        "model": model_path(spec),
        "served-model-name": spec.model.name,
        "dtype": engine.dtype,
        "tensor-parallel-size": engine.tensor_parallel_size,
        "max-model-len": engine.max_model_len,
        "block-size": engine.kv_cache.block_size,
        "num-gpu-blocks-override": engine.kv_cache.blocks,
        "gpu-memory-utilization": engine.gpu_memory_utilization,
        "kv-scrub-verify": engine.kv_cache.scrub_verify.value,
        "kv-events-config": KV_EVENTS_CONFIG if engine.kv_events.enabled else None,
        "kv-transfer-config": render_kv_transfer(engine.kv_transfer.resolved()) if engine.kv_transfer else None,
    }
    return [*(f"--{name}={value}" for name, value in values.items() if value is not None), *engine.extra_args]


def _container(spec: TenantPolicySpec, owner: Owner, default_image: str) -> Manifest:
    mounts = [
        mount("policy", dirname(layout.ENGINE_POLICY)),
        mount("engine-key", dirname(layout.ENGINE_KEYS)),
        mount("server-tls", layout.SERVER_TLS),
        {"name": "tmp", "mountPath": TMP},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - a volume of the pod's own
    ]
    if weights_claim(spec, owner) is not None:
        mounts.append({"name": "weights", "mountPath": MODELS, "readOnly": True})
    return {
        "name": "engine",
        "image": spec.engine.image or default_image,
        "command": ["python3", "-m", "blockwarden_engine"],
        "args": engine_args(spec),
        "env": [
            *identity_env(owner),
            {"name": "HOME", "value": TMP},
            *({"name": variable.name, "value": variable.value} for variable in spec.engine.env),
        ],
        "ports": [
            {"name": API_PORT_NAME, "containerPort": layout.ENGINE_API_PORT, "protocol": "TCP"},
            {"name": INTERNAL_PORT_NAME, "containerPort": layout.ENGINE_INTERNAL_PORT, "protocol": "TCP"},
        ],
        "resources": spec.engine.resources.manifest() if spec.engine.resources else {},
        "securityContext": CONTAINER_SECURITY,
        "startupProbe": probe(layout.LIVEZ_PATH, period=5, failures=START_SECONDS // 5),
        "livenessProbe": probe(layout.LIVEZ_PATH, period=10, failures=6, timeout=10),
        "readinessProbe": probe(layout.READYZ_PATH, period=2, failures=3),
        "volumeMounts": mounts,
    }


def _volumes(spec: TenantPolicySpec, owner: Owner) -> list[Manifest]:
    volumes: list[Manifest] = [
        config_volume("policy", owner.engine),
        secret_volume("engine-key", owner.engine_key),
        secret_volume("server-tls", owner.engine_tls),
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    if (claim := weights_claim(spec, owner)) is not None:
        volumes.append({"name": "weights", "persistentVolumeClaim": {"claimName": claim}})
    return volumes
