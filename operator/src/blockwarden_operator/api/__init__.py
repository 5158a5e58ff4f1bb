"""The TenantPolicy API, v1alpha1: the models are the one source of crds/, of the CRD chart and of the field reference.

Pure: no Kubernetes client, no clock, no I/O. `TenantPolicy.of` reads an object; `.manifest()` of any part is its manifest form.
"""

from .base import ApiModel, SecretKeyRef
from .conditions import (
    AcceptedReason,
    Condition,
    ConditionType,
    IsolationReason,
    NetworkReason,
    ReadyReason,
    SecretsReason,
    WorkloadReason,
)
from .engine import Engine, EnvVar, KvCache, KvEvents, KvTransferSpec, ScrubVerify
from .gateway import Gateway, GatewayService, GatewayTls
from .kubernetes import NetworkPolicyPeer, Resources
from .model import HuggingFace, Model, ModelSource, VolumeClaim, WeightsVolume
from .policy import TenantPolicy
from .spec import Isolation, Monitoring, TenantPolicySpec
from .status import MAX_WAITING, PodCount, Replicas, RotationStatus, TenantPolicyStatus, TenantStatus
from .template import PodSecurity, PodTemplate
from .tenant import ApiKeySource, KvShare, ModelName, Tenant, TenantLimits

__all__ = [
    "MAX_WAITING",
    "AcceptedReason",
    "ApiKeySource",
    "ApiModel",
    "Condition",
    "ConditionType",
    "Engine",
    "EnvVar",
    "Gateway",
    "GatewayService",
    "GatewayTls",
    "HuggingFace",
    "Isolation",
    "IsolationReason",
    "KvCache",
    "KvEvents",
    "KvShare",
    "KvTransferSpec",
    "Model",
    "ModelName",
    "ModelSource",
    "Monitoring",
    "NetworkPolicyPeer",
    "NetworkReason",
    "PodCount",
    "PodSecurity",
    "PodTemplate",
    "ReadyReason",
    "Replicas",
    "Resources",
    "RotationStatus",
    "ScrubVerify",
    "SecretKeyRef",
    "SecretsReason",
    "Tenant",
    "TenantLimits",
    "TenantPolicy",
    "TenantPolicySpec",
    "TenantPolicyStatus",
    "TenantStatus",
    "VolumeClaim",
    "WeightsVolume",
    "WorkloadReason",
]
