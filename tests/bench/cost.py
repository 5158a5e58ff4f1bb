"""What the plugin costs: the same requests to stock vLLM and to the plugin's engine at the same time, on one core each.

    $(python tools/engine_env.py) tests/bench/cost.py [--pairs 400] [--minutes 20]

Other machines on the same host change how fast this one computes by a tenth from one second to the next. Turns one after the
other met that as noise; side by side both engines meet the same, and they swap cores after each turn: a pair is two turns. Prints
wall time and processor time per generated token as ratios ours / stock, with the 95 % interval of the mean log-ratio. It stops
when both intervals' half-widths are at most 1 %, or says what ended it first. Greedy answers are compared as well.
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
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from engine_pair import Server, engine_pair, harness, model

CLIENTS = 6
PROMPT, ANSWER = 64, 40
ARGUMENTS = [
    "--dtype=float32", "--max-model-len=1024", "--block-size=32", "--num-gpu-blocks-override=257", "--enforce-eager",
    "--max-num-seqs=16", "--max-num-batched-tokens=1024",
]  # fmt: skip
EPSILON = 1e-3
GOAL = 0.01
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


def take_turn(side: Side, core: int, prompts: list[list[int]]) -> Run:
    """CLIENTS requests at once, as many from each of three tenants, served on one core."""
    server = side.server

    def ask(at: int) -> Any:
        fields = {"prompt": prompts[at], "max_tokens": ANSWER, "logprobs": 2}
        response = server.complete(side.connections[at], "abc"[at % 3], f"u{at}", **fields)
        return json.loads(response.read())["choices"][0]

    server.pin(core)
    with ThreadPoolExecutor(CLIENTS) as pool:
        wall, cpu = time.perf_counter(), server.cpu_seconds()
        answers = list(pool.map(ask, range(CLIENTS)))
        wall, cpu = time.perf_counter() - wall, server.cpu_seconds() - cpu
    tokens = CLIENTS * ANSWER
    return Run(wall / tokens, cpu / tokens, answers)


def take_turns(sides: list[Side], cores: tuple[int, int], prompts: list[list[int]]) -> tuple[Run, Run]:
    """(stock's turn, ours), at the same time."""
    with ThreadPoolExecutor(2) as pool:
        stock, ours = (pool.submit(take_turn, side, core, prompts) for side, core in zip(sides, cores, strict=True))
        return stock.result(), ours.result()


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


def measure(pairs: int, minutes: float) -> dict[str, Any]:
    """Runs pairs until both intervals are narrow, the pairs are used up, or the time is."""
    kit, chance = harness(), random.Random(7)
    shares = [kit.tenant(name) for name in "abc"]
    first, second, *_ = sorted(os.sched_getaffinity(0))
    walls: list[float] = []
    cpus: list[float] = []
    decided = 0
    with engine_pair(model("smollm2"), ARGUMENTS, shares, threads=1) as pair, contextlib.ExitStack() as opened:
        sides = [Side(server, [server.connect() for _ in range(CLIENTS)]) for server in pair]
        for side in sides:
            for connection in side.connections:
                opened.callback(connection.close)
        end, ended = time.monotonic() + minutes * 60, "pairs used up"
        for number in range(-1, pairs):
            runs = [
                take_turns(sides, cores, [[chance.randrange(1000, 20000) for _ in range(PROMPT)] for _ in range(CLIENTS)])
                for cores in ((first, second), (second, first))
            ]
            if number < 0:
                continue  # the first pair pays for what is compiled and allocated once
            walls.append(statistics.fmean(math.log(b.wall / a.wall) for a, b in runs))
            cpus.append(statistics.fmean(math.log(b.cpu / a.cpu) for a, b in runs))
            margins = [first_difference(x, y) for a, b in runs for x, y in zip(a.answers, b.answers, strict=True)]
            decided += sum(margin is not None and margin >= EPSILON for margin in margins)
            print(f"pair {number + 1}: {show('wall', walls)}; {show('cpu', cpus)}", flush=True)
            if len(cpus) >= 5 and max(interval(walls)[1], interval(cpus)[1]) <= GOAL:
                ended = "both half-widths are at most 1 %"
                break
            if time.monotonic() > end:
                ended = "time used up before both half-widths were at most 1 %: other work on this machine is the noise"
                break
    return {"wall": walls, "cpu": cpus, "decided_differences": decided, "ended": ended}


def show(name: str, logs: list[float]) -> str:
    """One line: the ratio and its interval."""
    mean, half = interval(logs)
    return f"{name} {math.exp(mean):.4f} [{math.exp(mean - half):.4f}, {math.exp(mean + half):.4f}]"


def judge(logs: list[float]) -> str:
    """Whether the goal is met: an interval with the bound inside decides nothing."""
    mean, half = interval(logs)
    if math.exp(mean + half) < BOUND:
        return "pass"
    return "fail" if math.exp(mean - half) >= BOUND else "undecided: more pairs would tell"


def main() -> None:
    parser = argparse.ArgumentParser(description="What the plugin costs beside stock vLLM.")
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--minutes", type=float, default=20)
    args = parser.parse_args()
    result = measure(args.pairs, args.minutes)
    print(f"\ncost of the plugin, ours / stock per token, {len(result['cpu'])} pairs ({result['ended']})")
    print(f"  {show('wall time', result['wall'])}\n  {show('processor time', result['cpu'])}")
    print(f"  goal: the processor time's interval ends below {BOUND}: {judge(result['cpu'])}")
    print(f"  greedy answers that differ where stock's margin is at least {EPSILON}: {result['decided_differences']}")


if __name__ == "__main__":
    main()
