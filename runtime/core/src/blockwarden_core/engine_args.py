"""Which vLLM arguments and environment variables a deployment may set, and why not the others.

One list for the TenantPolicy's CEL rules, the operator's checks and the engine's launcher. It is an allow-list: vLLM grows
flags faster than anybody can review them, and one that logs prompts or swaps the scheduler undoes everything else.

There is one spelling, `--flag=value` (or `--flag` for a switch), one list item each. vLLM's own parser reads more
(`--flag value`, `--flag_name`, unique prefixes, `--json.key`, `--config file`); each of those is a way around a list of
names, so none of them is accepted. A value must match its flag's pattern, which is written in the common subset of RE2
(CEL) and Python. Why the known bad ones are bad is in `unsafe`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from . import unsafe
from .kv_transfer import kv_transfer_refusal

COUNT: Final = "[0-9]{1,12}"
NUMBER: Final = "[0-9]{1,6}([.][0-9]{1,6})?"
WORD: Final = "[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
FRACTION: Final = "(0?[.][0-9]{1,18}|1([.]0)?)"
"""Above 0 and at most 1, as Python writes a float of that range."""
SERVED_NAME: Final = "[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}"
PATH: Final = "/[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*"
"""An absolute path of plain names; no name begins with a dot, so there is no way up."""

EXTRA_ARGS: Final[Mapping[str, str]] = MappingProxyType({
    "async-scheduling": "",
    "attention-backend": "FLASH_ATTN|FLASHINFER|TRITON_ATTN",
    "cpu-offload-gb": NUMBER,
    "disable-custom-all-reduce": "",
    "disable-sliding-window": "",
    "enable-auto-tool-choice": "",
    "enable-chunked-prefill": "",
    "enable-expert-parallel": "",
    "enforce-eager": "",
    "generation-config": "auto|vllm",
    "kv-cache-dtype": "auto|float16|bfloat16|fp8|fp8_e4m3|fp8_e5m2",
    "load-format": "auto|safetensors|dummy",
    "long-prefill-token-threshold": COUNT,
    "max-cudagraph-capture-size": COUNT,
    "max-logprobs": COUNT,
    "max-num-batched-tokens": COUNT,
    "max-num-seqs": COUNT,
    "model-impl": "auto|vllm|transformers",
    "no-async-scheduling": "",
    "no-enable-chunked-prefill": "",
    "optimization-level": "[0-3]",
    "quantization": WORD,
    "reasoning-parser": WORD,
    "seed": COUNT,
    "stream-interval": COUNT,
    "tokenizer-mode": "auto|slow|mistral",
    "tool-call-parser": WORD,
})  # fmt: skip
"""What `spec.engine.extraArgs` may hold: the pattern of each flag's value, empty for a switch."""

FIELD_ARGS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType({
    "block-size": ("spec.engine.kvCache.blockSize", COUNT),
    "dtype": ("spec.engine.dtype", WORD),
    "gpu-memory-utilization": ("spec.engine.gpuMemoryUtilization", FRACTION),
    "kv-events-config": ("spec.engine.kvEvents", re.escape(unsafe.KV_EVENTS_CONFIG)),
    "kv-transfer-config": ("spec.engine.kvTransfer", ".+"),  # judged by kv_transfer_refusal
    "max-model-len": ("spec.engine.maxModelLen", COUNT),
    "model": ("spec.model.source", PATH),
    "num-gpu-blocks-override": ("spec.engine.kvCache.blocks", COUNT),
    "served-model-name": ("spec.model.name", SERVED_NAME),
    "tensor-parallel-size": ("spec.engine.tensorParallelSize", COUNT),
})  # fmt: skip
"""What the operator renders from a field of its own: the field, and the pattern of the value."""

LOGGING_LEVEL: Final = "VLLM_LOGGING_LEVEL"
EXTRA_ENV: Final[Mapping[str, str]] = MappingProxyType({
    "NCCL_DEBUG": "VERSION|WARN|INFO",
    "NCCL_IB_DISABLE": "[01]",
    "NCCL_IB_HCA": "[A-Za-z0-9_:,=^-]{1,128}",
    "NCCL_P2P_DISABLE": "[01]",
    "NCCL_SOCKET_IFNAME": "[A-Za-z0-9_:,=^.-]{1,128}",
    "OMP_NUM_THREADS": "[0-9]{1,4}",
    "OMP_WAIT_POLICY": "ACTIVE|PASSIVE|active|passive",
    "PYTORCH_CUDA_ALLOC_CONF": "[a-z_]{1,64}:[A-Za-z0-9.]{1,16}(,[a-z_]{1,64}:[A-Za-z0-9.]{1,16}){0,3}",
    "TZ": "[A-Za-z][A-Za-z0-9_+/-]{0,63}",
    "VLLM_CPU_KVCACHE_SPACE": "[0-9]{1,6}",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "[0-9]{1,4}",
    "VLLM_CPU_OMP_THREADS_BIND": "auto|nobind|[0-9,|-]{1,128}",
    "VLLM_ENGINE_READY_TIMEOUT_S": "[0-9]{1,6}",
    LOGGING_LEVEL: "INFO|WARNING|ERROR",
    "VLLM_LOG_STATS_INTERVAL": NUMBER,
    "VLLM_USE_DEEP_GEMM": "[01]",
    "VLLM_USE_FLASHINFER_SAMPLER": "[01]",
    "VLLM_XGRAMMAR_CACHE_MB": "[0-9]{1,6}",
})  # fmt: skip
"""What `spec.engine.env` may set, by name: the pattern of the value. Debug logging is absent on purpose: vLLM then writes
request bodies, salts included."""

_FLAG: Final = re.compile("--([a-z0-9]+(?:-[a-z0-9]+)*)(?:=(.*))?", re.DOTALL)


def pattern_of(args: Mapping[str, str]) -> str:
    """One anchored pattern for an allow-list of flags, for CEL: what it matches is what `refusal` lets through."""
    switches = "|".join(name for name, value in args.items() if not value)
    valued = "|".join(f"{name}=({value})" for name, value in args.items() if value)
    return f"^--({switches}|{valued})$"


def refusal(args: Sequence[str]) -> str | None:
    """Why `spec.engine.extraArgs` cannot be run, in one sentence that names the flag, never its value; None if it can."""
    return _first_refusal(args, EXTRA_ARGS, {name: field for name, (field, _) in FIELD_ARGS.items()})


def launch_refusal(args: Sequence[str]) -> str | None:
    """As `refusal`, for the whole command line of an engine: what the operator renders from fields is allowed as well."""
    return _first_refusal(args, {**EXTRA_ARGS, **{name: pattern for name, (_, pattern) in FIELD_ARGS.items()}}, {})


def env_refusal(env: Mapping[str, str]) -> str | None:
    """Why `spec.engine.env` cannot be set, in one sentence that names the variable, never its value; None if it can."""
    for name, value in env.items():
        if (pattern := EXTRA_ENV.get(name)) is None:
            return f"{name} is not an environment variable that blockwarden lets through: remove it"
        if not re.fullmatch(pattern, value):
            return f"{name} has a value that does not match {pattern}: change it"
    return None


def inherited_env_refusal(env: Mapping[str, str]) -> str | None:
    """Why an engine must not start in this environment, in one sentence that names the variable; None if it may."""
    for name in env:
        if (why := unsafe.variable_reason(name)) is not None:
            return f"{name} in the engine's environment is refused ({why}): build the image without it"
    levels = EXTRA_ENV[LOGGING_LEVEL]
    if not re.fullmatch(levels, env.get(LOGGING_LEVEL, "INFO")):
        return f"{LOGGING_LEVEL} in the engine's environment does not match {levels}: build the image without it"
    return None


def _first_refusal(args: Sequence[str], allowed: Mapping[str, str], fields: Mapping[str, str]) -> str | None:
    seen: set[str] = set()
    for arg in args:
        match = _FLAG.fullmatch(arg)
        if match is None:
            return "an argument is not of the form --flag=value or --flag: write each flag as one item of that form"
        name, value = match[1], match[2]
        if name in fields:
            return f"--{name} has a field of its own: set {fields[name]} instead"
        if (mode := unsafe.mode_asked(name, value or "")) is not None:
            return f"--{name} asks for {mode.name}, which is refused ({mode.why}): remove it"
        if name not in allowed:
            return _not_allowed(name)
        if name in seen:
            return f"--{name} is given twice: keep one"
        seen.add(name)
        if problem := _value_problem(name, value, allowed[name]):
            return problem
    return None


def _value_problem(name: str, value: str | None, pattern: str) -> str | None:
    if not pattern:
        return None if value is None else f"--{name} is a switch: write it without a value"
    if value is None:
        return f"--{name} needs a value: write --{name}=<value>"
    if name == "kv-transfer-config":
        return kv_transfer_refusal(value)
    return None if re.fullmatch(pattern, value) else f"--{name} has a value that does not match {pattern}: change it"


def _not_allowed(name: str) -> str:
    if (why := unsafe.FLAGS.get(name)) is not None:
        return f"--{name} is refused ({why}): remove it"
    return f"--{name} is not an engine argument that blockwarden lets through: remove it"
