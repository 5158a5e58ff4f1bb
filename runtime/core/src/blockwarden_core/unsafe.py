"""The refusal table: the modes of vLLM with which an engine must not start, and why each of them undoes isolation.

Data and its look-ups. `engine_args` and `kv_transfer` refuse by these rows, and docs/reference-refusals.md is made of them.
Arguments are an allow-list, so a flag that is missing here is refused all the same, without a reason of its own; variables come
from images, which set many harmless ones, so what is missing among them is let in. A reason completes "is refused (...)".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

KV_EVENTS_CONFIG: Final = '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","topic":"kv-events"}'
"""The only KV-event configuration: no replay socket, the port that the NetworkPolicy knows."""

FLAGS: Final[Mapping[str, str]] = MappingProxyType({
    "additional-config": "it hands settings to a platform that nobody has checked",
    "allowed-local-media-path": "it lets requests read files of the pod",
    "api-key": "clients authenticate at the gateway: use spec.tenants[].apiKeys",
    "api-server-count": "only the launcher's own API process admits requests",
    "attention-config": "it can move KV blocks out of the scrubbed pool",
    "chat-template": "it replaces the model's template: put it beside the weights",
    "collect-detailed-traces": "traces hold tenants' data",
    "config": "it brings in arguments that nobody has checked",
    "data-parallel-size": "another replica has a pool and quotas of its own: use spec.engine.replicas",
    "decode-context-parallel-size": "a block's content is spread over ranks that do not own it alone",
    "disable-fastapi-docs": "blockwarden always sets it",
    "distributed-executor-backend": "only vLLM's own executors acknowledge scrubs from every rank",
    "ec-manager-config": "it replaces the encoder cache's manager",
    "ec-transfer-config": "encoder caches are not keyed by tenant",
    "enable-elastic-ep": "it opens a route that stops the engine for everybody",
    "enable-fault-tolerance": "it opens routes that anybody may call",
    "enable-log-deltas": "it writes tenants' answers to the log",
    "enable-log-outputs": "it writes tenants' answers to the log",
    "enable-log-requests": "it writes tenants' prompts to the log",
    "enable-mm-embeds": "it loads tensors that a client sends",
    "enable-per-request-metrics": "it answers with timings of the engine that all tenants share",
    "enable-prefix-caching": "blockwarden always sets it",
    "enable-prompt-embeds": "it loads tensors that a client sends",
    "enable-prompt-tokens-details": "blockwarden always sets it; use spec.isolation.exposeCachedTokens",
    "enable-return-routed-experts": "it keeps every request's routing in a buffer that is not scrubbed",
    "enable-scale-out": "it opens routes around the gateway",
    "enable-server-load-tracking": "it tells each tenant how busy the others are",
    "enable-shm-tensor-arena": "it keeps request data in shared memory that is not scrubbed",
    "enable-sleep-mode": "sleeping and waking bypass the scrubber",
    "enable-tokenizer-info-endpoint": "it opens a route around the gateway",
    "enable-trace-replay": "it keeps what was asked for replay",
    "grpc": "it serves a port around the gateway",
    "grpc-port": "it opens a port around the gateway",
    "headless": "an engine without its API process admits nobody and attests nothing",
    "hf-overrides": "it changes the model beneath the block manager",
    "host": "blockwarden binds the engine itself",
    "io-processor-plugin": "it runs code that reads every request",
    "kv-offloading-backend": "use spec.engine.kvTransfer",
    "kv-offloading-size": "use spec.engine.kvTransfer",
    "language-model-only": "blockwarden always sets it: media is refused",
    "log-config-file": "it can log at debug level, where vLLM writes request bodies",
    "log-level": "at debug level vLLM writes request bodies, salts included",
    "logging-config": "it can log at debug level, where vLLM writes request bodies",
    "logits-processors": "it runs code that sees every tenant's tokens",
    "media-io-kwargs": "media is refused",
    "middleware": "blockwarden's admission is the only middleware",
    "mm-processor-cache-gb": "blockwarden always sets it to 0: processor caches are not keyed by tenant",
    "mm-processor-cache-type": "processor caches are not keyed by tenant",
    "model-class-overrides": "it runs another model class than the block manager was checked with",
    "no-enable-prefix-caching": "turn sharing off with spec.isolation.scope: Request",
    "no-language-model-only": "blockwarden always sets --language-model-only: media is refused",
    "otlp-traces-endpoint": "it sends traces of requests out of the pod",
    "port": "blockwarden binds the engine itself",
    "prefill-context-parallel-size": "a block's content is spread over ranks that do not own it alone",
    "prefix-caching-hash-algo": "blockwarden always sets sha256",
    "profiler-config": "profiles hold tenants' data",
    "reasoning-parser-plugin": "it runs code that reads every answer",
    "scheduler-cls": "blockwarden's scheduler keeps tenants apart",
    "scheduling-policy": "priority scheduling lets a request preempt another tenant's",
    "spec-method": "speculation can keep text across tenants and its blocks are not scrubbed",
    "spec-model": "speculation can keep text across tenants and its blocks are not scrubbed",
    "spec-tokens": "speculation can keep text across tenants and its blocks are not scrubbed",
    "speculative-config": "speculation can keep text across tenants and its blocks are not scrubbed",
    "structured-outputs-config": "blockwarden always sets it: grammars are cached by trust scope",
    "tokens-only": "it opens routes around the gateway",
    "tool-parser-plugin": "it runs code that reads every answer",
    "tool-server": "tools run in sandboxes that tenants would share",
    "trust-remote-code": "it runs the model repository's code in the process that holds every tenant's prompts",
    "trust-request-chat-template": "it runs a template that a client sends",
    "trust-request-mm-kwargs": "it hands a client's arguments to the media processor",
    "uds": "blockwarden binds the engine itself",
    "weight-transfer-config": "weights that change under a running engine leave stale KV blocks valid",
    "worker-cls": "blockwarden's worker scrubs and guards the blocks",
    "worker-extension-cls": "blockwarden's worker scrubs and guards the blocks",
})  # fmt: skip
"""Flags that people do try, without the dashes. Whatever else is not allowed is refused too."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode that is asked for by the value of a flag, whether or not that flag is allowed with another value.

    Attributes:
        name: what it is called.
        flags: the flags that may ask for it, without the dashes.
        pattern: finds it in the value.
        why: the reason.
        example: a value that asks for it.
    """

    name: str
    flags: tuple[str, ...]
    pattern: re.Pattern[str]
    why: str
    example: str


MODES: Final = (
    Mode(
        "suffix decoding", ("spec-method", "speculative-config"), re.compile("suffix", re.IGNORECASE),
        "it keeps one tree of everybody's answers, and a tenant's speed then tells what the others wrote", '{"method":"suffix"}',
    ),
    Mode(
        "a prefix hash of xxhash", ("prefix-caching-hash-algo",), re.compile("xxhash", re.IGNORECASE),
        "it is not a cryptographic hash: a tenant can make a prompt that hits another tenant's block", "xxhash",
    ),
    Mode(
        "HiSparse", ("attention-config",), re.compile("hisparse", re.IGNORECASE),
        "it builds a block pool of its own, which has no tenants", '{"hisparse_config":{}}',
    ),
    Mode(
        "KV events to anybody", ("kv-events-config",), re.compile(f"^(?!{re.escape(KV_EVENTS_CONFIG)}$)"),
        "they hold every tenant's prompts and salts in clear, and the network policies close one port only",
        '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:6000"}',
    ),
)  # fmt: skip

VARIABLES: Final[Mapping[str, str]] = MappingProxyType({
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "it writes the GPU's memory, every tenant's blocks, to a file",
    "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "it writes the GPU's memory, every tenant's blocks, to a file",
    "CUSTOM_FASTAPI_*": "it puts other code in front of the routes",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "it unpickles what comes over a socket",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "it opens routes that load and unload adapters",
    "VLLM_API_KEY": "clients authenticate at the gateway",
    "VLLM_DEBUG_DUMP_PATH": "it writes what passes through the engine to files",
    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE": "it writes tenants' answers to the log",
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "it lets a request name, and end, another tenant's request",
    "VLLM_ENABLE_COHERE_API": "it opens a route that ignores the salt",
    "VLLM_ENABLE_RESPONSES_API_STORE": "it keeps answers that anybody may read by id",
    "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "it serves after scrubbing failed",
    "VLLM_LOGGING_CONFIG_PATH": "it can log at debug level, where vLLM writes request bodies",
    "VLLM_LORA_RESOLVER_*": "it loads the adapter that a request names",
    "VLLM_MEDIA_CACHE": "it keeps media by address for everybody",
    "VLLM_MEDIA_CONNECTOR": "it fetches media with other code",
    "VLLM_MODEL_REDIRECT_PATH": "it serves another model than the policy names",
    "VLLM_RUST_FRONTEND_PATH": "blockwarden's admission is not in that front end",
    "VLLM_SERVER_DEV_MODE": "it opens routes that sleep, reset and run code in the engine",
    "VLLM_TRACE_FUNCTION": "it writes every call to files",
    "VLLM_USE_RUST_FRONTEND": "blockwarden's admission is not in that front end",
    "VLLM_USE_SIMPLE_KV_OFFLOAD": "it copies KV blocks to a store that is not scrubbed",
    "VLLM_V1_USE_OUTLINES_CACHE": "it keeps every tenant's grammars in one store on disk",
})  # fmt: skip
"""Variables with which an engine never starts, wherever they come from (an image may set what a TenantPolicy may not); `*` at the
end stands for any rest of a name."""

CONNECTORS: Final[Mapping[str, str]] = MappingProxyType({
    "DecodeBenchConnector": "it serves made-up KV blocks",
    "ExampleConnector": "its keys are bare tokens, without the salt",
    "ExampleHiddenStatesConnector": "it writes hidden states of every request to files",
    "FlexKVConnectorV1": "nobody has shown that its keys hold the salt",
    "HF3FSKVConnector": "its keys are bare tokens, without the salt",
    "HiSparseConnector": "it builds a block pool of its own, which has no tenants",
    "LMCacheConnectorV1": "its keys are bare tokens, without the salt",
    "MoRIIOConnector": "it reads blocks that a request names",
    "MooncakeConnector": "it reads blocks that a request names",
    "MultiConnector": "it brings in connectors that nobody has checked together",
    "NixlConnector": "it reads blocks that a request names",
    "NixlPullConnector": "it reads blocks that a request names",
    "NixlPushConnector": "it writes blocks that a request names",
})  # fmt: skip
"""Classes of vLLM's KV connectors that no TenantPolicy can name. Those that one can name are `kv_transfer.Connector`."""


def mode_asked(flag: str, value: str) -> Mode | None:
    """The unsafe mode that this value of this flag asks for, if it does."""
    return next((mode for mode in MODES if flag in mode.flags and mode.pattern.search(value)), None)


def variable_reason(name: str) -> str | None:
    """Why no engine starts with this environment variable, whatever its value; None if it may."""
    exact = VARIABLES.get(name)
    wild = (why for pattern, why in VARIABLES.items() if pattern.endswith("*") and name.startswith(pattern[:-1]))
    return exact or next(wild, None)
