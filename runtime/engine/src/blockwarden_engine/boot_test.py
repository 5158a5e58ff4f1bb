"""An engine's proof, before it reports ready, that its own blocks come back zero: write, free, scrub, read back.

Development had no accelerator, and the next driver, kernel or model may be one that nobody has tried. So every engine runs one
request of its own through the real scheduler, runner, kernels and streams: its blocks must have been written to (or the test
would prove nothing), are freed, ordered and acknowledged like a tenant's, and must then be zero in every layer on every rank,
read through the layers' views and not through the scrubber's. Nobody is served before: the engine core takes no request until
this returns, and readiness needs its answer. What fails here ends the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from .compat import request_api
from .errors import BootTestFailed
from .ledger import CLEAN
from .quotas import Quota
from .support import replaced

NAME: Final = "blockwarden-boot-test"
ANSWER: Final = 4
STEPS: Final = 1000
"""An engine that is not done after so many steps never will be."""


def prove_scrubbing(core: Any) -> int:
    """Runs the proof; how many blocks it was made with.

    Args:
        core: vLLM's engine core, complete and with no request yet.

    Raises:
        BootTestFailed: the blocks were not written, not scrubbed, or are not zero.
    """
    scheduler, everything = core.scheduler, core.scheduler.ledger.size
    with replaced(scheduler, "_take_policy", lambda: None):  # no tenant is there yet, and the policy file may change meanwhile
        scheduler.ledger.apply({NAME: Quota(everything, everything, everything, 1, 1)})
        scheduler.add_own(make_request(core), scheduler.ledger.enter(NAME, 1, ""))
        blocks = _write(core)
        _free(core)
        _check_zero(core, blocks)
    scheduler.apply_policy_in_force()
    scheduler.counters["boot_test_blocks"] = len(blocks)
    return len(blocks)


def make_request(core: Any) -> Any:
    """A request that fills a block and begins another, as far as the model's length allows."""
    api, config = request_api(), core.vllm_config
    tokens = max(1, min(core.scheduler.block_size + 1, config.model_config.max_model_len - ANSWER))
    return api.Request(
        request_id=NAME,
        prompt_token_ids=[1] * tokens,
        sampling_params=api.SamplingParams(temperature=0.0, max_tokens=ANSWER, ignore_eos=True),
        pooling_params=None,
        block_hasher=core.request_block_hasher,
    )


def _write(core: Any) -> list[int]:
    """Steps until the request's blocks hold something on every rank; their ids."""
    for _ in _steps(core):
        request = core.scheduler.requests.get(NAME)
        if request is None or request.refused is not None:
            raise BootTestFailed("the boot self-test's request was refused or ended early: the engine does not start")
        if request.num_output_tokens:
            break
    tables = core.scheduler.kv_cache_manager.get_block_ids(NAME)
    blocks = sorted({block for table in tables for block in table} - {0})
    if not blocks or not all(_nonzero(core, blocks)):
        raise BootTestFailed("the boot self-test wrote to no block that it could see: the engine does not start")
    return blocks


def _free(core: Any) -> None:
    """Steps until the request is done, then gives up its cached blocks and steps until they are acknowledged."""
    for _ in _steps(core):
        pass
    core.scheduler.reset_prefix_cache()
    for _ in _steps(core):
        pass


def _check_zero(core: Any, blocks: list[int]) -> None:
    ledger = core.scheduler.ledger
    if unclean := [block for block in blocks if ledger.state(block) != CLEAN]:
        raise BootTestFailed(f"block {unclean[0]} of the boot self-test was freed and never scrubbed: the engine does not start")
    for rank, found in enumerate(_nonzero(core, blocks)):
        if found:
            raise BootTestFailed(
                f"block {found[0]} was scrubbed, acknowledged and read back as not zero on rank {rank}: the engine does not start"
            )


def _nonzero(core: Any, blocks: list[int]) -> list[list[int]]:
    """Per rank, which of the blocks hold something."""
    found: list[list[int]] = core.model_executor.collective_rpc("nonzero_blocks", args=(blocks,))
    return found


def _steps(core: Any) -> Iterator[None]:
    """One step of the engine after the other, as its own loop takes them, while there is work."""
    for _ in range(STEPS):
        if not (core.scheduler.has_requests() or core.batch_queue):
            return
        _, executed = core.step_fn()
        core.post_step(executed)
        yield
    raise BootTestFailed(f"the boot self-test was not done after {STEPS} steps: the engine does not start")
