"""What the plugin costs: the same requests to stock vLLM and to the plugin's engine at the same time, on one core each.

    $(python tools/engine_env.py) tests/bench/cost.py [--minutes 20] [--control]

Other machines on the same host change how fast each core here computes by a tenth from one second to the next. So both engines
serve the same prompts at the same time and swap cores twenty times a second: what one core suffers, both engines suffer. Who is
moved first, and who is asked first, is drawn by chance each time: always the same one first favours the other by 2 %. Even so two
stock engines differ by up to 2 % for as long as they run, by where in memory they came to lie: so both are started anew after
TURNS turns, three times at least. `--control` measures stock vLLM against itself, and must find nothing.

Prints wall time and processor time per generated token as ratios ours / stock, with the 95 % interval of the mean log-ratio over
turns, and each start's mean. It stops when both intervals' half-widths are at most 1 % and the processor time's interval
decides, or says what ended it first. Greedy answers are compared as well.
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
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from engine_pair import ONE_CORE, Server, engine_pair, harness, model, pin

CLIENTS = 6
PROMPT, ANSWER = 64, 40
ARGUMENTS = [
    "--dtype=float32", "--max-model-len=1024", "--block-size=32", "--num-gpu-blocks-override=257", "--enforce-eager",
    "--max-num-seqs=16", "--max-num-batched-tokens=1024",
]  # fmt: skip
SWAP_SECONDS = 0.05
EPSILON = 1e-3
GOAL = 0.01
TURNS = 20
STARTS = 3
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
    """Each server is on one core, and they change places every SWAP_SECONDS."""
    first, second, *_ = sorted(os.sched_getaffinity(0))
    places = [(server.threads(), core) for server, core in zip(servers, (first, second), strict=True)]
    done = threading.Event()

    def swap() -> None:
        nonlocal places
        while True:
            for threads, core in chance.sample(places, 2):
                pin(threads, core)
            places = [(threads, second if core == first else first) for threads, core in places]
            if done.wait(SWAP_SECONDS):
                return

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
        asked = {id(side): pool.submit(side.take_turn, prompts) for side in chance.sample(sides, 2)}
        return [asked[id(side)].result() for side in sides]


def interval(logs: list[float]) -> tuple[float, float]:
    """(mean, half-width of its 95 % interval) of log-ratios."""
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
    """Log-ratios ours / stock of all turns so far, each start's mean of `cpu`, and answers that differ beyond rounding."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    decided_differences: int = 0
    ended: str = ""

    @property
    def done(self) -> bool:
        narrow = max(interval(self.wall)[1], interval(self.cpu)[1]) <= GOAL
        return len(self.starts) >= STARTS and narrow and judge(self.cpu) in {"pass", "fail"}

    def add(self, stock: Run, ours: Run) -> None:
        self.wall.append(math.log(ours.wall / stock.wall))
        self.cpu.append(math.log(ours.cpu / stock.cpu))
        margins = [first_difference(x, y) for x, y in zip(stock.answers, ours.answers, strict=True)]
        self.decided_differences += sum(margin is not None and margin >= EPSILON for margin in margins)
        print(f"turn {len(self.cpu)}: {show('wall', self.wall)}; {show('cpu', self.cpu)}", flush=True)


def measure_start(measured: Measured, chance: random.Random, *, control: bool) -> None:
    """Starts both engines and adds TURNS turns."""
    shares = [harness().tenant(name) for name in "abc"]
    made = engine_pair(model("smollm2"), ARGUMENTS, shares, environment=ONE_CORE, control=control)
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
    measured.starts.append(statistics.fmean(measured.cpu[-TURNS:]))


def measure(minutes: float, *, control: bool = False) -> Measured:
    """Starts engines until what they tell is enough, or the time is used up."""
    measured, chance, end = Measured(), random.Random(7), time.monotonic() + minutes * 60
    while not measured.done and time.monotonic() < end:
        measure_start(measured, chance, control=control)
    measured.ended = (
        "both half-widths are at most 1 %" if measured.done
        else "time used up before the intervals decided: other work on this machine is the noise"
    )  # fmt: skip
    return measured


def show(name: str, logs: list[float]) -> str:
    """One line: the ratio and its interval."""
    mean, half = interval(logs)
    return f"{name} {math.exp(mean):.4f} [{math.exp(mean - half):.4f}, {math.exp(mean + half):.4f}]"


def judge(logs: list[float]) -> str:
    """Whether the goal is met: an interval with the bound inside decides nothing."""
    mean, half = interval(logs)
    if math.exp(mean + half) < BOUND:
        return "pass"
    return "fail" if math.exp(mean - half) >= BOUND else "undecided: more turns would tell"


def main() -> None:
    parser = argparse.ArgumentParser(description="What the plugin costs beside stock vLLM.")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--control", action="store_true", help="stock vLLM on both sides")
    args = parser.parse_args()
    result = measure(args.minutes, control=args.control)
    print(f"\ncost of the plugin, ours / stock per token, {len(result.cpu)} turns ({result.ended})")
    print(f"  {show('wall time', result.wall)}\n  {show('processor time', result.cpu)}")
    print(f"  processor time by start: {', '.join(f'{math.exp(log):.4f}' for log in result.starts)}")
    print(f"  goal: the processor time's interval ends below {BOUND}: {judge(result.cpu)}")
    print(f"  greedy answers that differ where stock's margin is at least {EPSILON}: {result.decided_differences}")


if __name__ == "__main__":
    main()
