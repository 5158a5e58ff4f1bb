"""What the plugin costs: the same requests to stock vLLM and to the plugin's engine at the same time, on one core each.

    $(python tools/engine_env.py) tests/bench/cost.py [--minutes 20] [--control]

Other machines on the same host change how fast each core here computes by a tenth from one second to the next. So both engines
serve the same prompts at the same time and swap cores twenty times a second: what one core suffers, both engines suffer. Who is
moved first, and who is asked first, is drawn by chance each time: always the same one first favours the other by 2 %. Even so two
stock engines may differ by a percent for as long as they run, by where in memory they came to lie: so both are started anew after
TURNS turns, in an order drawn by chance, STARTS times at least. `--control` measures stock vLLM against itself, and must find
nothing. Nothing else asks the engines anything meanwhile, as an operator and a scraper would.

Prints wall time and processor time per generated token as ratios ours / stock, with the 95 % interval of the mean log-ratio: that
over turns or that over the starts' means, whichever is wider. It stops when both half-widths are at most 1 %, or says that the
time was used up first. Greedy answers are compared as well.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import math
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from engine_pair import ONE_CORE, Server, engine_pair, harness, model, pin

CLIENTS = 12
PROMPT, ANSWER = 64, 40
ARGUMENTS = [
    "--dtype=float32", "--max-model-len=1024", "--block-size=32", "--num-gpu-blocks-override=257", "--enforce-eager",
    "--max-num-seqs=16", "--max-num-batched-tokens=1024",
]  # fmt: skip
SWAP_SECONDS = 0.05
EPSILON = 1e-3
GOAL = 0.01
TURNS = 14
STARTS = 4
BOUND = 1.03
T95 = {2: 12.7, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36, 10: 2.26, 15: 2.14, 20: 2.09, 30: 2.05, 60: 2.00}


@dataclass
class Run:
    """One engine's turn: seconds per generated token, and what it answered."""

    wall: float
    cpu: float
    answers: list[Any]


@dataclass
class Side:
    """One engine, and connections to it that stay open, as a gateway's do."""

    server: Server
    connections: list[http.client.HTTPConnection]

    def take_turn(self, prompts: list[list[int]]) -> Run:
        """CLIENTS requests at once, as many from each of three tenants."""

        def ask(at: int) -> Any:
            fields = {"prompt": prompts[at], "max_tokens": ANSWER, "logprobs": 2}
            response = self.server.complete(self.connections[at], "abc"[at % 3], f"u{at}", **fields)
            return json.loads(response.read())["choices"][0]

        with ThreadPoolExecutor(CLIENTS) as pool:
            wall, cpu = time.perf_counter(), self.server.cpu_seconds()
            answers = list(pool.map(ask, range(CLIENTS)))
            wall, cpu = time.perf_counter() - wall, self.server.cpu_seconds() - cpu
        tokens = CLIENTS * ANSWER
        return Run(wall / tokens, cpu / tokens, answers)


@contextlib.contextmanager
def swapping(servers: list[Server], chance: random.Random) -> Iterator[None]:
    """Each server's threads of now are on one core, and the servers change places every SWAP_SECONDS."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise RuntimeError("the cost of the plugin is measured on two cores, and this process may use one")
    threads, done = [server.threads() for server in servers], threading.Event()

    def swap() -> None:
        while not done.wait(SWAP_SECONDS):
            cores.reverse()
            for at in chance.sample(range(2), 2):
                pin(threads[at], cores[at])

    for at in range(2):
        pin(threads[at], cores[at])
    with ThreadPoolExecutor(1) as pool:
        swapper = pool.submit(swap)
        try:
            yield
        finally:
            done.set()
            swapper.result()


def take_turns(sides: list[Side], prompts: list[list[int]], chance: random.Random) -> list[Run]:
    """Each side's turn, at the same time."""
    with ThreadPoolExecutor(2) as pool, swapping([side.server for side in sides], random.Random(chance.random())):
        turns = {at: pool.submit(sides[at].take_turn, prompts) for at in chance.sample(range(2), 2)}
        return [turns[0].result(), turns[1].result()]


def interval(logs: list[float]) -> tuple[float, float]:
    """(mean, half-width of its 95 % interval) of log-ratios, TURNS of each start: over turns or over starts, the wider one."""
    starts = [statistics.fmean(logs[at : at + TURNS]) for at in range(0, len(logs) - TURNS + 1, TURNS)]
    mean, half = over_turns(logs)
    return mean, max(half, over_turns(starts)[1]) if len(starts) > 1 else half


def over_turns(logs: list[float]) -> tuple[float, float]:
    """The same for the engines as they were started, with no regard to how others would fare."""
    if len(logs) < 2:
        return (logs[0] if logs else 0.0), math.inf
    t = next(value for count, value in sorted(T95.items(), reverse=True) if count <= len(logs))
    return statistics.fmean(logs), t * statistics.stdev(logs) / math.sqrt(len(logs))


def first_difference(reference: Any, other: Any) -> float | None:
    """The reference's margin between its best two tokens where the answers part; None if they do not."""
    for at, (expected, got) in enumerate(zip(reference["token_ids"], other["token_ids"], strict=True)):
        if expected != got:
            best, second = sorted(reference["logprobs"]["top_logprobs"][at].values(), reverse=True)[:2]
            return float(best - second)
    return None


@dataclass
class Measured:
    """Log-ratios ours / stock of all turns so far, TURNS of each start, and how many answers differ beyond rounding."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    decided_differences: int = 0

    @property
    def starts(self) -> int:
        return len(self.cpu) // TURNS

    @property
    def narrow(self) -> bool:
        return max(interval(self.wall)[1], interval(self.cpu)[1]) <= GOAL

    @property
    def ended(self) -> str:
        """Why no more was measured."""
        if self.narrow:
            return "both half-widths are at most 1 %"
        return (
            "the time was used up before both half-widths were at most 1 %: the noise is other work here, and how starts differ"
        )

    def add(self, stock: Run, ours: Run) -> None:
        self.wall.append(math.log(ours.wall / stock.wall))
        self.cpu.append(math.log(ours.cpu / stock.cpu))
        margins = [first_difference(x, y) for x, y in zip(stock.answers, ours.answers, strict=True)]
        self.decided_differences += sum(margin is not None and margin >= EPSILON for margin in margins)
        print(f"turn {len(self.cpu)}: {show('wall', self.wall)}; {show('cpu', self.cpu)}", flush=True)


def measure_start(measured: Measured, chance: random.Random, *, control: bool) -> None:
    """Starts both engines and adds TURNS turns."""
    shares = [harness().tenant(name) for name in "abc"]
    order = {"ours_first": chance.random() < 0.5, "control": control}
    made = engine_pair(model("smollm2"), ARGUMENTS, shares, environment=ONE_CORE, **order)
    with made as pair, contextlib.ExitStack() as opened:
        sides = [Side(server, [server.connect() for _ in range(CLIENTS)]) for server in pair]
        for side in sides:
            for connection in side.connections:
                opened.callback(connection.close)
        for number in range(-2, TURNS):
            prompts = [[chance.randrange(1000, 20000) for _ in range(PROMPT)] for _ in range(CLIENTS)]
            stock, ours = take_turns(sides, prompts, chance)
            if number >= 0:  # the first turns pay for what is compiled and allocated once
                measured.add(stock, ours)


def measure(minutes: float, *, control: bool = False) -> Measured:
    """Starts engines until both intervals are narrow, or the time is used up; STARTS times at least."""
    measured, chance, end = Measured(), random.Random(7), time.monotonic() + minutes * 60
    while measured.starts < STARTS or not (measured.narrow or time.monotonic() > end):
        measure_start(measured, chance, control=control)
    return measured


def show(name: str, logs: list[float]) -> str:
    """One line: the ratio and its interval."""
    mean, half = interval(logs)
    return f"{name} {math.exp(mean):.4f} [{math.exp(mean - half):.4f}, {math.exp(mean + half):.4f}]"


def judge(mean: float, half: float) -> str:
    """Whether the goal is met: an interval with the bound inside decides nothing."""
    if math.exp(mean + half) < BOUND:
        return "pass"
    return "fail" if math.exp(mean - half) >= BOUND else "undecided: more turns would tell"


def main() -> int:
    parser = argparse.ArgumentParser(description="What the plugin costs beside stock vLLM.")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--control", action="store_true", help="stock vLLM on both sides")
    args = parser.parse_args()
    result = measure(args.minutes, control=args.control)
    what = "control, stock / stock" if args.control else "cost of the plugin, ours / stock"
    print(f"\n{what} per token, {len(result.cpu)} turns of {result.starts} starts ({result.ended})")
    print(f"  {show('wall time', result.wall)}\n  {show('processor time', result.cpu)}")
    print(f"  greedy answers that differ where stock's margin is at least {EPSILON}: {result.decided_differences}")
    if args.control:
        mean, half = interval(result.cpu)
        verdict = "pass" if abs(mean) <= half else "fail"
        print(f"  goal: 1 lies in the processor time's interval: {verdict}")
    else:
        verdict = judge(*interval(result.cpu))
        print(f"  goal: the processor time's interval ends below {BOUND}: {verdict}")
    return int(verdict != "pass" or result.decided_differences > 0)


if __name__ == "__main__":
    sys.exit(main())
