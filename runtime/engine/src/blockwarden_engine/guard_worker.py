"""The worker's own book of who owns which block, and the check of every block table against it.

The scheduler checks its tables before it sends them; this is the second pair of eyes, behind the transport and in front of the
attention kernels. It believes a change of owner only if this worker itself zeroed the block in between, so neither a wrong
grant nor a table corrupted on its way can make a request read what another one left. Pure: standard library only.

What it refuses it replaces by the null block and reports; the scheduler ends that request. The null block is zeroed again before
the next step, because the refused request has written to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from .protocol import NOBODY, StepOrder

NULL_BLOCK: Final = 0
Table = tuple[list[int], ...]
"""Block ids of one request, one list per KV-cache group."""


@dataclass(slots=True)
class Findings:
    """What one step's tables were refused for.

    Attributes:
        violations: (request id, first refused block id) pairs, one per request.
        tables: request id -> the table to run instead, in the shape in which the step sent it (whole or new ids only).
        voided: request id -> a whole table of null blocks, for requests whose earlier table lost a block to another owner.
    """

    violations: list[tuple[str, int]] = field(default_factory=list)
    tables: dict[str, Table] = field(default_factory=dict)
    voided: dict[str, Table] = field(default_factory=dict)


class ShadowTable:
    """Owners of blocks and tables of requests as this worker has seen them granted.

    Per step, in this order: `urgent` (to be zeroed before anything runs), `finish`, `take`, `check_whole` for what is sent
    whole, `check_kept`, `check_more`.
    """

    def __init__(self, blocks: int, lasting: Sequence[bool]) -> None:
        """Args:
        blocks: number of blocks of this worker's KV cache, the null block included.
        lasting: per KV-cache group, whether a request keeps its blocks until it ends. Groups with a window give blocks back
            while the worker's table still names them; their kernels never read behind the window.
        """
        self._lasting = tuple(lasting)
        self._owner = [NOBODY] * blocks
        self._request_owner: dict[str, int] = {}
        self._tables: dict[str, Table] = {}
        self._holders: dict[int, set[str]] = {}
        self._voided: dict[str, int] = {}
        self._null_written = False

    def owner(self, block: int) -> int:
        """Who owns `block`; NOBODY for an id that does not exist."""
        return self._owner[block] if 0 <= block < len(self._owner) else NOBODY

    def urgent(self, order: StepOrder) -> list[int]:
        """The ids that this step's forward pass needs zeroed, beside the dirty ones: recycled ones, and a null block that was
        written to."""
        null = [NULL_BLOCK] if self._null_written else []
        self._null_written = False
        return [*order.zero, *null]

    def finish(self, requests: Iterable[str]) -> None:
        """Forgets requests that are finished, or preempted and thus sent again as a whole."""
        for request in requests:
            self._request_owner.pop(request, None)
            self.drop_table(request)

    def drop_table(self, request: str) -> None:
        """Forgets a request's table, not its owner."""
        self._voided.pop(request, None)
        for group in self._tables.pop(request, ()):
            for block in group:
                if (holders := self._holders.get(block)) is not None:
                    holders.discard(request)

    def take(self, order: StepOrder) -> None:
        """Takes an order's changes of owner into the book; its zeroes must be in front of everything that follows.

        A grant of a block that still is somebody else's is not believed: the block keeps its owner, and the table that
        needs it fails the check.
        """
        for block in order.scrub:
            self._owner[block] = NOBODY
            self._void_holders(block)
        for block in order.zero:
            self._void_holders(block)
        for owner, blocks in order.grants.items():
            for block in blocks:
                if self._owner[block] in (NOBODY, owner):
                    self._owner[block] = owner
        self._request_owner.update(order.owners)

    def check_whole(self, request: str, table: Sequence[Sequence[int]], findings: Findings) -> None:
        """Checks a table that replaces whatever the request had."""
        self.drop_table(request)
        self._tables[request] = tuple([] for _ in table)
        self.check_more(request, table, findings)

    def check_more(self, request: str, table: Sequence[Sequence[int]], findings: Findings) -> None:
        """Checks ids that are added to a request's table."""
        owner = self._request_owner.get(request, NOBODY)
        refused = next((block for group in table for block in group if not self._may_use(block, owner)), None)
        kept = tuple([block if self._may_use(block, owner) else NULL_BLOCK for block in group] for group in table)
        if refused is not None:
            findings.violations.append((request, refused))
            findings.tables[request] = kept
            self._null_written = True
        held = self._tables.setdefault(request, tuple([] for _ in table))
        for group, added, lasting in zip(held, kept, self._lasting, strict=True):
            group.extend(added)
            for block in added if lasting else ():
                if block != NULL_BLOCK:
                    self._holders.setdefault(block, set()).add(request)

    def check_kept(self, scheduled: Iterable[str], findings: Findings) -> None:
        """Checks that no scheduled request runs on with a block that was taken from it since it got its table."""
        if not self._voided:
            return
        for request in scheduled:
            if (block := self._voided.pop(request, None)) is not None:
                findings.violations.append((request, block))
                findings.voided[request] = tuple([NULL_BLOCK] * len(group) for group in self._tables[request])
                self._null_written = True
                self._tables[request] = tuple(list(group) for group in findings.voided[request])

    def _may_use(self, block: int, owner: int) -> bool:
        return block == NULL_BLOCK or (owner != NOBODY and self.owner(block) == owner)

    def _void_holders(self, block: int) -> None:
        for request in self._holders.pop(block, ()):
            self._voided.setdefault(request, block)
