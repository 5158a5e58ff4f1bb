"""What of vLLM's configurations the tenants' scheduler keeps apart, and the proof that vLLM was built around it.

Pure but for `replaced`, which stands in for the configuration option that vLLM does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from .errors import UnsupportedEngine


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that a whole configuration of vLLM may have, wherever it comes from, and with which an engine must not start.

    Attributes:
        name: what it is called.
        why: the reason.
        present: whether a VllmConfig has it.
    """

    name: str
    why: str
    present: Callable[[Any], bool]


FEATURES: Final = (
    Feature(
        "a scheduling policy other than fcfs", "it lets a request preempt another tenant's",
        lambda config: config.scheduler_config.policy != "fcfs",
    ),
    Feature(
        "pipeline parallelism", "scrubbing has not been shown to hold across pipeline stages",
        lambda config: config.parallel_config.pipeline_parallel_size > 1,
    ),
    Feature(
        "context parallelism", "a block's content is spread over ranks that do not own it alone",
        lambda config: config.parallel_config.decode_context_parallel_size > 1
        or config.parallel_config.prefill_context_parallel_size > 1,
    ),
    Feature(
        "an external KV cache", "none has been shown to keep tenants apart together with the tenants' block pool",
        lambda config: config.kv_transfer_config is not None,
    ),
    Feature(
        "an external encoder cache", "encoder outputs are not keyed by tenant",
        lambda config: config.ec_transfer_config is not None,
    ),
    Feature(
        "media input", "encoder and processor caches are not keyed by tenant",
        lambda config: config.model_config.multimodal_config is not None
        and not config.model_config.multimodal_config.language_model_only,
    ),
    Feature(
        "an encoder-decoder model", "its encoder's outputs are neither keyed by tenant nor scrubbed",
        lambda config: config.model_config.is_encoder_decoder,
    ),
    Feature(
        "a diffusion model", "it has no KV blocks that could be kept apart",
        lambda config: config.model_config.is_diffusion,
    ),
)  # fmt: skip


def check_supported(vllm_config: Any) -> None:
    """Raises:
    UnsupportedEngine: the configuration has a feature whose state or order of requests is not kept apart by tenant.
    """
    for feature in FEATURES:
        if feature.present(vllm_config):
            raise UnsupportedEngine(f"{feature.name} is refused ({feature.why}): run without it")


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
