"""What an engine writes down about the step in which it fails: who was in it and how much, and nothing of what they said.

vLLM writes the whole step instead. It leaves token ids out, but not the requests' sampling parameters, and those hold stop
strings, forbidden words and schemas, which are prompts by another name. Pure but for the log.
"""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger("vllm.blockwarden")


def dump_engine_exception(config: Any, scheduler_output: Any, scheduler_stats: Any) -> None:
    """Stands in for vLLM's function of this name. Never raises: the step's own error is on its way."""
    try:
        text = render_step(scheduler_output)
    except Exception as error:
        text = f"a step that cannot be described ({type(error).__name__})"
    logger.error(
        "blockwarden: the engine fails in %s; running requests: %s", text, scheduler_stats and scheduler_stats.num_running_reqs
    )


def render_step(output: Any) -> str:
    """One line about a SchedulerOutput: ids of requests, tokens and blocks, as numbers only."""
    new = [
        f"{data.req_id}(prompt {len(data.prompt_token_ids or ())}, computed {data.num_computed_tokens},"
        f" blocks {[len(blocks) for blocks in data.block_ids]})"
        for data in output.scheduled_new_reqs
    ]
    tokens = {request: int(count) for request, count in output.num_scheduled_tokens.items()}
    return f"a step of {output.total_num_scheduled_tokens} tokens {tokens}, new {new}, finished {sorted(output.finished_req_ids)}"
