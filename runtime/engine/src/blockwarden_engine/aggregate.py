"""All ranks' acknowledgements in one: a block is clean only when every rank has zeroed its part of it.

With several workers vLLM hears one rank, unless the executor has an output aggregator; then all reply. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .errors import MismatchedAck, MissingAck
from .protocol import ATTRIBUTE, StepAck


def join_acks(acks: Sequence[StepAck | None]) -> StepAck:
    """One acknowledgement for all ranks, with every rank's violations.

    Raises:
        MissingAck: a rank sent none.
        MismatchedAck: ranks zeroed different epochs or numbers of blocks.
    """
    present = [ack for ack in acks if ack is not None]
    if not present or len(present) != len(acks):
        raise MissingAck(f"{len(present)} of {len(acks)} ranks acknowledged a step: the engine ends")
    first = present[0]
    if any((ack.epoch, ack.scrubbed) != (first.epoch, first.scrubbed) for ack in present):
        raise MismatchedAck("ranks acknowledged different scrubs of one step: the engine ends")
    violations = list(dict.fromkeys(violation for ack in present for violation in ack.violations))
    return StepAck(first.epoch, first.scrubbed, violations, ranks=sum(ack.ranks for ack in present))


class AckAggregator:
    """Sits in an executor's aggregator slot; `inner` is the KV connector's aggregator where there is one."""

    def __init__(self, inner: Any = None) -> None:
        self._inner = inner

    def aggregate(self, outputs: Sequence[Any], output_rank: int = 0) -> Any:
        """The output of `output_rank` with the joined acknowledgement; None while ranks have no outputs yet."""
        if all(output is None for output in outputs):
            return None
        ack = join_acks([getattr(output, ATTRIBUTE, None) for output in outputs])
        output = outputs[output_rank] if self._inner is None else self._inner.aggregate(outputs, output_rank)
        setattr(output, ATTRIBUTE, ack)
        return output
