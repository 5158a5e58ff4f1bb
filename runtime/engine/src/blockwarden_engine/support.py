"""What of vLLM's configurations the tenants' scheduler keeps apart, and the proof that vLLM was built around it.

Pure but for `replaced`, which stands in for the configuration option that vLLM does not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .errors import UnsupportedEngine


def check_supported(vllm_config: Any) -> None:
    """Raises:
    UnsupportedEngine: the configuration has a feature whose blocks or order of requests this scheduler does not keep apart.
    """
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    refused = {
        "--scheduling-policy other than fcfs": vllm_config.scheduler_config.policy != "fcfs",
        "context parallelism": parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1,
        "an external KV cache": vllm_config.kv_transfer_config is not None,
        "encoder-decoder models": model.is_encoder_decoder,
        "diffusion models": model.is_diffusion,
    }
    for feature in (name for name, present in refused.items() if present):
        raise UnsupportedEngine(f"{feature}: not kept apart by tenant, run without it")


def check_built(scheduler: Any, pool: type[Any], manager_class: type[Any]) -> None:
    """Raises:
    UnsupportedEngine: vLLM built something else than the tenants' pool and manager, or lacks a place that we rely on.
    """
    manager = scheduler.kv_cache_manager
    if type(manager) is not manager_class or type(manager.block_pool) is not pool:
        raise UnsupportedEngine("vLLM built its own block pool: this version builds it elsewhere")
    if any(single.block_pool is not manager.block_pool for single in manager.coordinator.single_type_managers):
        raise UnsupportedEngine("the model's KV cache has a second block pool, which has no tenants: serve another model")
    if scheduler.has_mamba_layers:
        raise UnsupportedEngine("models with Mamba layers keep state outside of scrubbed blocks: serve another model")
    if not isinstance(scheduler.encoder_cache_mismatch_reqs, set) or scheduler.requests:
        raise UnsupportedEngine("vLLM's set of requests to end with an error is gone: this version ends them elsewhere")


@contextmanager
def replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    """Within the context, `module.name` is `value`: vLLM builds its pool and its manager by these names and by no option."""
    original = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)
