"""Where the weights are, and the Job that fetches them: the one pod of a policy that may talk to the outside, and it never sees
a prompt. The engine mounts what it fetched read-only and has no way out.
"""

from __future__ import annotations

from typing import Final

from blockwarden_operator.api import HuggingFace, PodTemplate, TenantPolicySpec

from .names import Component, Manifest, Owner, render_object, short_digest
from .pods import CONTAINER_SECURITY, TMP, render_pod

MODELS: Final = "/models"
"""Where a volume with weights is mounted."""


def weights_claim(spec: TenantPolicySpec, owner: Owner) -> str | None:
    """The PersistentVolumeClaim that engines mount; None where the weights are in the image."""
    source = spec.model.source
    if source.hugging_face is not None:
        return owner.weights
    return source.persistent_volume_claim.name if source.persistent_volume_claim else None


def model_path(spec: TenantPolicySpec) -> str:
    """The directory of the weights as an engine sees it."""
    source = spec.model.source
    if source.hugging_face is not None:
        return f"{MODELS}/{_digest(source.hugging_face)}"
    if source.persistent_volume_claim is not None:
        path = source.persistent_volume_claim.path
        return f"{MODELS}/{path}" if path else MODELS
    return str(source.path)


def weights_job(spec: TenantPolicySpec, owner: Owner) -> str | None:
    """The name of the download Job; it changes with what is downloaded, since Jobs cannot be edited."""
    hub = spec.model.source.hugging_face
    return f"{owner.weights}-{_digest(hub)}" if hub else None


def render_weights(spec: TenantPolicySpec, owner: Owner, *, default_image: str) -> list[Manifest]:
    """The volume and the download Job; nothing where the weights are there already."""
    hub, name = spec.model.source.hugging_face, weights_job(spec, owner)
    if hub is None or name is None:
        return []
    claim: Manifest = {
        "accessModes": [hub.volume.access_mode],
        "resources": {"requests": {"storage": hub.volume.size}},
    }
    if hub.volume.storage_class_name:
        claim["storageClassName"] = hub.volume.storage_class_name
    pod = render_pod(
        owner,
        Component.WEIGHTS,
        _scheduling(spec.engine.template),
        {
            "restartPolicy": "OnFailure",
            "containers": [_container(hub, spec.engine.image or default_image, model_path(spec))],
            "volumes": [
                {"name": "weights", "persistentVolumeClaim": {"claimName": owner.weights}},
                {"name": "tmp", "emptyDir": {}},
            ],
        },
    )
    job = {"backoffLimit": 6, "template": pod}
    return [
        render_object("PersistentVolumeClaim", owner, owner.weights, Component.WEIGHTS, {"spec": claim}),
        render_object("Job", owner, name, Component.WEIGHTS, {"spec": job}, api_version="batch/v1"),
    ]


def _container(hub: HuggingFace, image: str, directory: str) -> Manifest:
    env: list[Manifest] = [
        {"name": "HOME", "value": TMP},
        # The engine image switches the hub off; this Job is the exception that makes that possible.
        {"name": "HF_HUB_OFFLINE", "value": "0"},
        {"name": "HF_HUB_DISABLE_TELEMETRY", "value": "1"},
    ]
    if hub.token_secret_ref:
        reference = {"name": hub.token_secret_ref.name, "key": hub.token_secret_ref.key}
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    return {
        "name": "download",
        "image": image,
        "command": ["hf", "download", hub.repo, "--revision", hub.revision, "--local-dir", directory],
        "env": env,
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [{"name": "weights", "mountPath": MODELS}, {"name": "tmp", "mountPath": TMP}],
    }


def _scheduling(template: PodTemplate) -> PodTemplate:
    """What of the engines' template holds for the Job: where a ReadWriteOnce volume can be used, and how images are pulled."""
    return PodTemplate(
        node_selector=template.node_selector,
        tolerations=template.tolerations,
        image_pull_secrets=template.image_pull_secrets,
        security_context=template.security_context,
    )


def _digest(hub: HuggingFace) -> str:
    return short_digest(hub.repo, hub.revision)
