"""What travels between scheduler and workers beside vLLM's own step messages.

Down, as attribute ATTRIBUTE of a SchedulerOutput: a StepOrder. Up, as the same attribute of a ModelRunnerOutput: a StepAck. Both
are plain values that pickle, so they survive multi-process workers. Standard library only: the scheduler's and the
workers' modules both import this one.

An owner is a positive int that the scheduler gives to each trust domain (tenant, generation, salt) when first seen, and never
gives twice; NOBODY owns clean, dirty and scrubbing blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

ATTRIBUTE: Final = "blockwarden"
NOBODY: Final = 0


@dataclass(slots=True)
class StepOrder:
    """What workers must do before this step's forward pass, and what they may believe during it.

    Attributes:
        epoch: the scrub epoch, rising by 1 with each order that has `scrub` blocks; 0 when there is none.
        scrub: ids of dirty blocks to zero; they belong to NOBODY afterwards and become clean when all ranks acknowledge.
        zero: ids of blocks recycled within one trust domain, to zero before the forward pass; already granted again.
        grants: owner -> ids of blocks that became this owner's in this step.
        owners: request id -> owner, for every request that is new to the workers in this step.
    """

    epoch: int = 0
    scrub: list[int] = field(default_factory=list)
    zero: list[int] = field(default_factory=list)
    grants: dict[int, list[int]] = field(default_factory=dict)
    owners: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class StepAck:
    """One rank's answer to a StepOrder, sent only after its zeroes are in memory.

    Attributes:
        epoch: the order's epoch.
        scrubbed: how many blocks were zeroed under it.
        violations: (request id, block id) pairs that the worker refused to run.
        ranks: how many ranks agree (set when acknowledgements are joined).
    """

    epoch: int
    scrubbed: int
    violations: list[tuple[str, int]] = field(default_factory=list)
    ranks: int = 1
