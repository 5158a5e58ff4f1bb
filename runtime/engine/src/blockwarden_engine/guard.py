"""The scheduler's check of every block table it is about to send: only blocks that the request's own trust domain owns.

A worker keeps the ids that it was sent, and a block that is in use never changes its domain. So checking the ids that are new in
a step covers whole tables by induction, at the cost of the new ids alone. Pure: it knows vLLM's messages by their fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from .domains import Domain
from .ledger import NULL_BLOCK

Found = list[tuple[str, int]]
"""(request id, block id) pairs, one per foreign block."""


def find_foreign(output: Any, requests: Mapping[str, Any], domains: Sequence[Domain | None]) -> Found:
    """Blocks in a step's messages that are not owned by the request to which they are sent.

    Args:
        output: a SchedulerOutput.
        requests: id -> request, with its `trust_domain`.
        domains: per block, the domain that owns it.
    """
    found: Found = []
    for new in output.scheduled_new_reqs:
        _check(new.req_id, new.block_ids, requests[new.req_id].trust_domain, domains, found)
    cached = output.scheduled_cached_reqs
    for request_id, groups in zip(cached.req_ids, cached.new_block_ids, strict=True):
        if groups is not None:
            _check(request_id, groups, requests[request_id].trust_domain, domains, found)
    return found


def _check(
    request_id: str, groups: Iterable[Sequence[int]], domain: Domain | None, domains: Sequence[Domain | None], found: Found
) -> None:  # fmt: skip
    for block in chain.from_iterable(groups):
        if block != NULL_BLOCK and (domain is None or not 0 <= block < len(domains) or domains[block] is not domain):
            found.append((request_id, block))


def drop_request(output: Any, request_id: str) -> int:
    """Takes a request out of a SchedulerOutput before it is sent; how many tokens were scheduled for it."""
    tokens: int = output.num_scheduled_tokens.pop(request_id, 0)
    output.total_num_scheduled_tokens -= tokens
    output.scheduled_new_reqs = [new for new in output.scheduled_new_reqs if new.req_id != request_id]
    cached = output.scheduled_cached_reqs
    if request_id in cached.req_ids:
        at = cached.req_ids.index(request_id)
        for column in (
            cached.req_ids,
            cached.new_block_ids,
            cached.num_computed_tokens,
            cached.num_output_tokens,
            cached.new_token_ids,
        ):
            if column:  # new_token_ids is empty without pipeline parallelism
                del column[at]
        cached.resumed_req_ids.discard(request_id)
        cached.all_token_ids.pop(request_id, None)
    output.scheduled_spec_decode_tokens.pop(request_id, None)
    output.scheduled_encoder_inputs.pop(request_id, None)
    return tokens


def drop_sampled(output: Any, request_id: str) -> None:
    """Takes what a request sampled, and its log-probabilities, out of a ModelRunnerOutput."""
    at = output.req_id_to_index.get(request_id)
    if at is not None and output.sampled_token_ids:
        output.sampled_token_ids[at] = []
    output.prompt_logprobs_dict.pop(request_id, None)
    output.prompt_token_id_logprobs_dict.pop(request_id, None)
