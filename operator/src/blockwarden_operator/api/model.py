"""The model that a TenantPolicy serves and where its weights come from.

The pod that holds prompts has no way out, so weights are never fetched by the engine: a Job of its own downloads them into a
volume, or they are in a volume or in the image already.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from blockwarden_core import layout
from blockwarden_core.engine_args import PATH, SERVED_NAME

from .base import ApiModel, ObjectName, Quantity, SecretKeyRef, rule, rules

NO_WEIGHTS_BELOW: Final = ("/proc", "/sys", "/dev", layout.ROOT)
"""What is mounted into an engine for other purposes: the kernel's own trees, and blockwarden's keys and policy."""


def holds_no_weights(path: str) -> bool:
    """Whether a path within the engine image leads to what is no part of the image."""
    return any(path == root or path.startswith(f"{root}/") for root in NO_WEIGHTS_BELOW)


class WeightsVolume(ApiModel):
    """The PersistentVolumeClaim that the operator makes for downloaded weights."""

    size: Quantity = "50Gi"
    """Its size; the weights must fit twice while a new revision is fetched."""
    storage_class_name: ObjectName | None = None
    """Its StorageClass; the cluster's default when left out."""
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany"] = "ReadWriteOnce"
    """ReadWriteMany lets engines on several nodes share the volume; with ReadWriteOnce they all run on one node."""


class HuggingFace(ApiModel):
    """Weights from the Hugging Face Hub, downloaded once by a Job into a volume."""

    repo: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?$", max_length=193)]
    """The repository, `owner/name`."""
    revision: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$", max_length=128)] = "main"
    """The branch, tag or commit. A commit is served the same for ever; a branch is read once, when the Job runs."""
    token_secret_ref: SecretKeyRef | None = None
    """The access token for a gated repository. Only the download Job reads it."""
    volume: WeightsVolume = WeightsVolume()
    """The volume that the weights are kept in."""


class VolumeClaim(ApiModel):
    """Weights in a PersistentVolumeClaim of the TenantPolicy's namespace, mounted read-only."""

    name: ObjectName
    """The claim's name."""
    path: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$", max_length=255)
    ] | None = None  # fmt: skip
    """The directory within the volume that holds the weights; its root when left out."""


class ModelSource(ApiModel):
    """Where the weights are; exactly one of the fields is set."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "[has(self.huggingFace), has(self.persistentVolumeClaim), has(self.path)].filter(set, set).size() == 1",
                "spec.model.source: names no source or several: set exactly one of huggingFace, persistentVolumeClaim and path",
            )
        )
    )

    hugging_face: HuggingFace | None = None
    """From the Hugging Face Hub, through a download Job."""
    persistent_volume_claim: VolumeClaim | None = None
    """From a volume."""
    path: Annotated[
        str,
        Field(
            pattern=f"^{PATH}$",
            max_length=255,
            json_schema_extra=rules(
                rule(
                    f"!self.matches('^({'|'.join(NO_WEIGHTS_BELOW)})(/|$)')",
                    f"spec.model.source.path: {', '.join(NO_WEIGHTS_BELOW)} hold no weights: "
                    "name a directory of the engine image",
                )
            ),
        ),
    ] | None = None  # fmt: skip
    """An absolute path within the engine image."""


class Model(ApiModel):
    """What is served."""

    name: Annotated[
        str,
        Field(
            pattern=f"^{SERVED_NAME}$",
            max_length=128,
            json_schema_extra=rules(
                rule(
                    "self == oldSelf",
                    "spec.model.name: cannot be changed, clients and external caches know the deployment by it: "
                    "create another TenantPolicy",
                )
            ),
        ),
    ]
    """The name under which clients ask for the model. Cannot be changed."""
    source: ModelSource
    """Where the weights are."""
