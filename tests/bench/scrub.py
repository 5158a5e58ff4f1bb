"""What scrubbing costs on a CPU: beside libc's memset of the same bytes, by blocks per step, and by number of tenants.

    $(python tools/engine_env.py) tests/bench/scrub.py

The memory is the scrubber's own over a buffer of vLLM's shape; blocks are drawn at random, and every measurement takes its turn
with the one that it is compared with. `same blocks` is a memset of each of those blocks, `one stretch` a single one of as many
bytes: from about 24 MiB on, libc then writes past the caches, which it does for no single block, so that column is for reading
and not a goal there.
"""

from __future__ import annotations

import ctypes
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import torch

from blockwarden_engine.footprint import Extent
from blockwarden_engine.guard_worker import ShadowTable
from blockwarden_engine.ledger import Ledger
from blockwarden_engine.protocol import ATTRIBUTE, StepOrder
from blockwarden_engine.quotas import Quota
from blockwarden_engine.scrubber import BlockScrubber, HostLane, HostMemory
from blockwarden_engine.steps import StepKeeper

BLOCK = 128 << 10
POOL = 8192
ORDERS = (1, 4, 16, 64, 256, 1024, 4096)
TENANTS = (1, 10, 100, 1000)
ROUNDS = 25
GOAL = 1 / 0.8
"""Time beside memset's: bandwidth within 20 %."""
CALL = 5e-6
"""Seconds that one order may cost beside its bytes, however few they are."""
LINEAR = 1.5
"""Largest ratio between two orders' costs per block, each beside memset's for the same blocks: memory itself is slower per byte
where an order does not fit into the caches."""
FLAT = 1.5
"""Largest ratio between the cost of a step with most tenants and with one."""
STRETCH = 16 << 20
"""Bytes up to which libc's memset of one stretch writes as it writes a block."""

Timed = Callable[[Sequence[int]], float]


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def medians(measured: dict[str, Timed], count: int) -> dict[str, float]:
    """Median seconds of each, over rounds in which they take turns."""
    times: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(ROUNDS):
        for name, timed in measured.items():
            times[name].append(timed(random.sample(range(POOL), count)))
    return {name: statistics.median(found) for name, found in times.items()}


def make_memory() -> tuple[torch.Tensor, BlockScrubber]:
    raw = torch.full((POOL * BLOCK,), 1, dtype=torch.int8)
    return raw, BlockScrubber(HostMemory(raw, [Extent(0, BLOCK, BLOCK)], POOL), HostLane())


def bandwidth(raw: torch.Tensor, scrubber: BlockScrubber) -> list[tuple[str, bool]]:
    """Lines of the table by order, and whether each meets its goal."""
    memset = ctypes.CDLL(None).memset
    memset.argtypes, memset.restype = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t), ctypes.c_void_p
    base = raw.data_ptr()

    def same_blocks() -> Timed:
        return lambda ids: seconds(lambda: [memset(base + block * BLOCK, 0, BLOCK) for block in ids])

    def one_stretch(ids: Sequence[int]) -> float:
        start = random.randrange(POOL - len(ids) + 1) * BLOCK
        return seconds(lambda: memset(base + start, 0, len(ids) * BLOCK))

    lines, costs = [], []
    for count in ORDERS:
        found = medians(
            {"scrub": lambda ids: seconds(lambda: scrubber.zero((), ids).confirm()), "same": same_blocks(), "one": one_stretch},
            count,
        )
        rate = {name: count * BLOCK / value / 1e9 for name, value in found.items()}
        same, one = found["scrub"] / found["same"], found["scrub"] / found["one"]
        bytes_alone = found["scrub"] - CALL
        good = bytes_alone <= GOAL * found["same"] and (bytes_alone <= GOAL * found["one"] or count * BLOCK > STRETCH)
        costs.append(same)
        each = found["scrub"] / count * 1e6
        lines.append((
            f"{count:>6} {found['scrub'] * 1e6:>10.0f} {each:>9.2f} {rate['scrub']:>8.1f} {rate['same']:>12.1f} "
            f"{rate['one']:>12.1f} {1 / same:>7.2f} {1 / one:>7.2f}", good,
        ))  # fmt: skip
    settled = [cost for count, cost in zip(ORDERS, costs, strict=True) if count >= 16]
    growth = max(settled) / min(settled)
    lines.append(
        (
            f"cost per block beside memset's, highest / lowest from 16 blocks on: {growth:.2f}; goal at most {LINEAR}",
            growth <= LINEAR,
        )
    )
    return lines


def step_of(tenants: int) -> tuple[Ledger, Callable[[], float]]:
    """A pool that `tenants` tenants share in full, and one step of it: 64 blocks freed, ordered, zeroed, acknowledged, taken."""
    share = (POOL - 1) // tenants
    ledger = Ledger(POOL)
    ledger.apply({f"t{at}": Quota(share, share, share, 1, 1) for at in range(tenants)})
    domains = [ledger.enter(f"t{at}", 1, "s") for at in range(tenants)]
    held = {at: ledger.take(domain, share).fresh for at, domain in enumerate(domains)}
    _, scrubber = MEMORY
    keeper = StepKeeper(ShadowTable(POOL, (True,)), scrubber, lambda *_: None)
    cached = SimpleNamespace(req_ids=[], new_block_ids=[], resumed_req_ids=set())

    def run() -> float:
        count = min(64, share)  # of one tenant, whoever else is there
        at = random.randrange(tenants)
        blocks = [held[at].pop() for _ in range(count)]
        started = time.perf_counter()
        for block in blocks:
            ledger.release(block, keep=False)
        ledger.scrub_ahead()
        epoch, scrub = ledger.order_scrub()
        step = SimpleNamespace(finished_req_ids=(), scheduled_new_reqs=(), scheduled_cached_reqs=cached)
        setattr(step, ATTRIBUTE, StepOrder(epoch=epoch, scrub=scrub))
        ack = getattr(keeper.prepare(step).settle(SimpleNamespace()), ATTRIBUTE)
        ledger.acknowledge(ack.epoch, ack.scrubbed)
        taken = ledger.take(domains[at], count).fresh
        spent = time.perf_counter() - started
        held[at] += taken
        return spent / count

    return ledger, run


def by_tenants() -> list[tuple[str, bool]]:
    steps = {count: step_of(count)[1] for count in TENANTS}
    times: dict[int, list[float]] = {count: [] for count in TENANTS}
    for _ in range(ROUNDS * 4):
        for count, run in steps.items():
            times[count].append(run())
    cost = {count: statistics.median(found) for count, found in times.items()}
    lines = [
        (f"{count:>8} {value * 1e6:>16.2f} {value / cost[TENANTS[0]]:>8.2f}", value / cost[TENANTS[0]] <= FLAT)
        for count, value in cost.items()
    ]
    return lines


def show(title: str, header: str, lines: list[tuple[str, bool]]) -> bool:
    print(f"\n{title}\n{header}")
    for line, good in lines:
        print(f"{line}  {'pass' if good else 'FAIL'}")
    return all(good for _, good in lines)


def main() -> int:
    """Prints both tables; 1 if a line misses its goal."""
    good = show(
        f"scrub of blocks of {BLOCK >> 10} KiB; goal: at least 0.80 of memset's bandwidth over the same blocks, and up to "
        f"{STRETCH >> 20} MiB over one stretch, {CALL * 1e6:.0f} us per order aside",
        f"{'blocks':>6} {'us':>10} {'us/block':>9} {'GB/s':>8} {'same blocks':>12} {'one stretch':>12} {'/same':>7} {'/one':>7}",
        bandwidth(*MEMORY),
    )
    good &= show(
        f"a step that frees, scrubs, confirms and takes up to 64 blocks; goal: at most {FLAT} times the cost with one tenant",
        f"{'tenants':>8} {'us/block':>16} {'/ one':>8}",
        by_tenants(),
    )
    return 0 if good else 1


MEMORY = make_memory()

if __name__ == "__main__":
    random.seed(7)
    sys.exit(main())
