"""How a TenantPolicy's engines run. Whatever vLLM can be told beyond these fields goes through an allow-list
(`blockwarden_core.engine_args`), the same for the rules here, the operator's checks and the engine's launcher."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from blockwarden_core import engine_args
from blockwarden_core.kv_transfer import DEFAULT_CPU_BYTES, IN_POD, NAMESPACE_PATTERN, Connector, KvTransfer
from blockwarden_core.policy import MIN_MODEL_LEN

from .base import ATOMIC, ApiModel, Image, list_map, rule, rules
from .kubernetes import Peers, Resources
from .template import PodTemplate


def cel_text(text: str) -> str:
    """`text` as a CEL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def cel_list(texts: list[str]) -> str:
    """`texts` as a CEL list literal."""
    return "[" + ", ".join(cel_text(text) for text in texts) + "]"


_OWN_FIELDS: Final = [f"--{name}" for name in engine_args.FIELD_ARGS]
_ALLOWED: Final = cel_text(engine_args.pattern_of(engine_args.EXTRA_ARGS))
_NOT_ALLOWED: Final = "spec.engine.extraArgs: an argument, or its value, is not one that keeps isolation"
_ALLOWED_ONES: Final = ": remove it; allowed are " + ", ".join(f"--{name}" for name in engine_args.EXTRA_ARGS)
_ARGS_RULES: Final = rules(
    rule(
        "self.all(arg, arg.matches('^--[a-z0-9]+(-[a-z0-9]+)*(=.*)?$'))",
        "spec.engine.extraArgs: an item is not one argument: write each as --flag=value, or --flag for a switch",
    ),
    rule(
        f"self.all(arg, !(arg.split('=')[0] in {cel_list(_OWN_FIELDS)}))",
        "spec.engine.extraArgs: an argument has a field of its own: use that instead of "
        + ", ".join(f"--{name} ({field})" for name, (field, _) in engine_args.FIELD_ARGS.items()),
    ),
    rule(
        f"self.all(arg, arg.matches({_ALLOWED}))",
        _NOT_ALLOWED + _ALLOWED_ONES,
        # Names the flag and never the value, nor an item that is no flag: it might be a credential.
        precise=f"{cel_text(_NOT_ALLOWED + ' (the first is ')} + "
        f"self.filter(arg, !arg.matches({_ALLOWED}))[0].find('^--[a-z0-9-]+') + {cel_text(')' + _ALLOWED_ONES)}",
    ),
    rule(
        "self.all(arg, self.filter(other, other.split('=')[0] == arg.split('=')[0]).size() == 1)",
        "spec.engine.extraArgs: an argument is given twice: keep one",
    ),
)
_MODEL_LEN_RULES: Final = rules(
    rule(
        f"self >= {MIN_MODEL_LEN}",
        f"spec.engine.maxModelLen: engines are attested with a request of {MIN_MODEL_LEN} tokens: set at least {MIN_MODEL_LEN}, "
        "or leave it out",
    ),
)
_ENV_PATTERN: Final = "^(" + "|".join(f"{name}=({value})" for name, value in engine_args.EXTRA_ENV.items()) + ")$"


class EnvVar(ApiModel):
    """An environment variable of the engine container."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                f"self.name in {cel_list(list(engine_args.EXTRA_ENV))}",
                "spec.engine.env: the variable is not one that keeps isolation: remove it; allowed are "
                + ", ".join(engine_args.EXTRA_ENV),
            ),
            rule(
                f"!(self.name in {cel_list(list(engine_args.EXTRA_ENV))}) || "
                f"(self.name + '=' + self.value).matches({cel_text(_ENV_PATTERN)})",
                "spec.engine.env: the value is not one that this variable may have: change or remove it",
            ),
        )
    )

    name: Annotated[str, Field(min_length=1, max_length=64)]
    """The variable's name, from the list of those that keep isolation."""
    value: Annotated[str, Field(max_length=256)]
    """Its value. There is no way to take it from a Secret: the engine holds no secrets but its own."""


class ScrubVerify(StrEnum):
    """How often a scrubbed block is read back and compared with zero before it is used again."""

    OFF = "Off"
    SAMPLED = "Sampled"
    ALWAYS = "Always"


class KvCache(ApiModel):
    """The engine's KV cache."""

    block_size: Literal[16, 32, 64, 128] | None = None
    """Tokens in one block; vLLM's choice when left out. On CPU use a multiple of 32."""
    blocks: Annotated[int, Field(ge=32, le=100_000_000)] | None = None
    """Blocks in the pool of one engine; as many as fit into memory when left out. Needed for tenants whose amounts are
    numbers of blocks to be checked against the pool."""
    scrub_verify: ScrubVerify = ScrubVerify.SAMPLED
    """How often a scrubbed block is read back: Off, Sampled (one block of every scrub order) or Always. A block that is not
    zero ends the engine. YAML reads a bare Off as false: quote it."""


class KvEvents(ApiModel):
    """vLLM's stream of KV-cache events. It carries every tenant's tokens and salts in clear."""

    enabled: bool = False
    """Whether engines publish events on port 5557."""
    allow_from: Peers = ()
    """Who may connect to port 5557; nobody when empty."""


class KvTransferSpec(ApiModel):
    """An external KV cache. Only connectors whose keys come from the salted block hashes are offered."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.connector == 'FusIOnX' || (!self.requireCacheSalt && !has(self.keyNamespace))",
                "spec.engine.kvTransfer: requireCacheSalt and keyNamespace are switches of connector FusIOnX: remove them",
            ),
            rule(
                f"!has(self.cpuBytes) || self.connector in {cel_list(sorted(IN_POD))}",
                "spec.engine.kvTransfer.cpuBytes: only Offloading and SimpleCPUOffload keep blocks in the pod: remove it",
            ),
        )
    )

    connector: Connector
    """The connector: Offloading or SimpleCPUOffload (memory of the engine's pod), MooncakeStore, LMCacheMP or FusIOnX."""
    cpu_bytes: Annotated[int, Field(ge=2**20, le=2**50)] | None = None
    """Size of the store of Offloading and SimpleCPUOffload in bytes, for all ranks together; 8 GiB when left out."""
    require_cache_salt: bool = False
    """FusIOnX only: a request without a salt neither reads nor stores the external cache."""
    key_namespace: Annotated[str, Field(pattern=NAMESPACE_PATTERN, max_length=64)] | None = None
    """FusIOnX only: goes into every storage key; setting or changing it starts a new cache."""

    def resolved(self) -> KvTransfer:
        """What `blockwarden_core.kv_transfer.render_kv_transfer` makes the engine's argument of."""
        return KvTransfer(
            connector=self.connector,
            cpu_bytes=self.cpu_bytes or DEFAULT_CPU_BYTES,
            require_cache_salt=self.require_cache_salt,
            key_namespace=self.key_namespace,
        )


class Engine(ApiModel):
    """The vLLM engines."""

    image: Image | None = None
    """The engine image; the one that the operator was installed with when left out."""
    replicas: Annotated[int, Field(ge=0, le=64)] = 1
    """Engine pods. Each has a KV cache of its own, and every tenant's quota holds in each."""
    resources: Resources | None = None
    """Compute resources of one engine pod; GPUs are asked for in `limits`."""
    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs of one pod that share the model."""
    max_model_len: Annotated[int, Field(ge=1, le=100_000_000, json_schema_extra=_MODEL_LEN_RULES)] | None = None
    """The longest request in tokens, prompt and answer together; the model's own when left out. At least 321: as much as the
    gateways' attestation of an engine needs."""
    dtype: Literal["auto", "float16", "bfloat16", "float32"] = "auto"
    """The data type of weights and activations."""
    gpu_memory_utilization: Annotated[float, Field(ge=0.05, le=1)] | None = None
    """The part of device memory that the engine may use, 0.05 to 1; vLLM's default when left out."""
    extra_args: Annotated[
        tuple[Annotated[str, Field(min_length=3, max_length=256)], ...],
        Field(max_length=32, json_schema_extra={**ATOMIC, **_ARGS_RULES}),
    ] = ()
    """Further vLLM arguments, each one item of the form `--flag=value`, or `--flag` for a switch. Only arguments that keep
    isolation are let through."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=32, json_schema_extra=list_map("name"))] = ()
    """Environment variables of the engine. Only those that keep isolation are let through."""
    template: PodTemplate = PodTemplate()
    """Scheduling, labels and tighter security of the engine pods."""
    kv_cache: KvCache = KvCache()
    """The KV cache that the tenants' quotas divide."""
    kv_events: KvEvents = KvEvents()
    """The KV-event stream, off by default."""
    kv_transfer: KvTransferSpec | None = None
    """An external KV cache; none when left out. None of the connectors has been shown to keep tenants apart yet: a policy with
    one is not accepted."""
