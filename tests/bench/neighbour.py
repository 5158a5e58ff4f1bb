"""A noisy neighbour: how much later a quiet tenant's first token comes while another tenant floods, stock and with the plugin.

    $(python tools/engine_env.py) tests/bench/neighbour.py [--samples 60]

Both engines run side by side and take turns, in rounds: the quiet tenant's short requests alone, then the same while the flooding
tenant keeps far more requests in the engine than its quota holds. Between two requests the quiet tenant pauses for a random time,
in both cases alike: it stays within its share of the engine, and its requests arrive at any moment of a step. Prints the medians
of the time to the first token and their ratio. The scheduler is vLLM's choice for a CPU, the synchronous one: where the next step
is scheduled while one runs, a request waits for both. A flood that falters (an answer other than 200, a client that ends, a
report in which the flooding tenant is not at its quota with more requests waiting) fails the bench.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from engine_pair import Server, engine_pair, harness, model

Engines = Callable[..., AbstractContextManager[tuple[Server, ...]]]

FLOOD = 24
RUNNING = 8
"""Requests of the flooding tenant that its policy lets run at once."""
ARGUMENTS = [
    "--dtype=float32", "--max-model-len=1024", "--block-size=32", "--num-gpu-blocks-override=129", "--enforce-eager",
    "--max-num-seqs=32", "--max-num-batched-tokens=512",
]  # fmt: skip
SHORT, LONG, ANSWER = 256, 512, 128
"""Tokens: the quiet tenant's prompt, one of the flood's, the answer that the flood asks for."""
BLOCKS = -(-(LONG + ANSWER) // 32)
PAUSE = (0.5, 2.0)
"""Seconds between two requests of the quiet tenant, drawn evenly."""
GOAL = 1.5
ROUNDS = 2
RAMP_SECONDS = 6.0
BETWEEN_CHECKS = 5
STOCK_SAMPLES = 2
"""A round's samples beside a flood on the stock engine, where each takes many seconds: few tell as much as many."""


class FloodFaltered(RuntimeError):
    """The flooding tenant did not keep its quota full: what was measured beside it says nothing."""


@dataclass
class Measured:
    """Seconds to the quiet tenant's first tokens on one engine, and what the flood got done meanwhile."""

    alone: list[float] = field(default_factory=list)
    crowded: list[float] = field(default_factory=list)
    served: int = 0

    @property
    def medians(self) -> tuple[float, float]:
        return statistics.median(self.alone), statistics.median(self.crowded)

    @property
    def ratio(self) -> float:
        alone, crowded = self.medians
        return crowded / alone


def prompt(chance: random.Random, length: int) -> list[int]:
    return [chance.randrange(1000, 20000) for _ in range(length)]


def first_token(server: Server, connection: http.client.HTTPConnection, chance: random.Random) -> float:
    """Seconds to the first token of a short streamed request of the quiet tenant, on a connection that is open, as a gateway's
    are."""
    start = time.perf_counter()
    response = server.complete(connection, "quiet", "q", prompt=prompt(chance, SHORT), max_tokens=2, stream=True)
    line = response.readline()
    took = time.perf_counter() - start
    if not line.startswith(b"data: {"):
        raise RuntimeError(f"{server.name}: the stream begins with {line[:100]!r}")
    response.read()
    return took


class Flood:
    """FLOOD clients of the flooding tenant, each with one long request after the other."""

    def __init__(self, server: Server) -> None:
        self._server, self._stop = server, threading.Event()
        self._connections = [server.connect() for _ in range(FLOOD)]
        self._pool = ThreadPoolExecutor(FLOOD)
        self._clients: list[Future[int]] = [self._pool.submit(self._drive, seed) for seed in range(FLOOD)]

    def check(self) -> None:
        """Raises:
        FloodFaltered: a client ended, or the tenant is not at its quota with requests waiting.
        """
        for client in self._clients:
            if client.done():
                raise FloodFaltered(f"{self._server.name}: a client of the flood ended") from client.exception()
        if (report := self._server.report()) is None:
            return
        tenant = next(tenant for tenant in report.tenants if tenant.name == "flood")
        # One that ends gives its blocks back, which are zeroed before the next one starts: there is room for less than two.
        full = tenant.running >= RUNNING or tenant.owned_blocks > tenant.limit_blocks - 2 * BLOCKS
        if not (full and tenant.running and tenant.waiting):
            raise FloodFaltered(f"{self._server.name}: the flooding tenant is not at its quota: {tenant}")

    def end(self) -> int:
        """Hangs up; how many requests were served.

        Raises:
            FloodFaltered: a client ended before.
        """
        self._stop.set()
        for connection in self._connections:
            with contextlib.suppress(OSError, AttributeError):
                connection.sock.shutdown(2)
        self._pool.shutdown()
        if broken := next((error for client in self._clients if (error := client.exception())), None):
            raise FloodFaltered(f"{self._server.name}: a client of the flood ended") from broken
        return sum(client.result() for client in self._clients)

    def _drive(self, seed: int) -> int:
        chance, connection, served = random.Random(seed), self._connections[seed], 0
        while not self._stop.is_set():
            try:
                response = self._server.complete(connection, "flood", f"f{seed}", prompt=prompt(chance, LONG), max_tokens=ANSWER)
                response.read()
                served += 1
            except (OSError, http.client.HTTPException):
                if not self._stop.is_set():
                    raise
        connection.close()
        return served


@contextmanager
def flooded(server: Server, measured: Measured) -> Iterator[Flood]:
    """The flood at its height, until the context ends and its last request is gone from the engine."""
    flood = Flood(server)
    try:
        time.sleep(RAMP_SECONDS)
        flood.check()
        yield flood
    finally:
        measured.served += flood.end()
    time.sleep(1)


def measure(samples: int, engines: Engines = engine_pair) -> dict[str, Measured]:
    """Engine -> what was measured on it, in ROUNDS rounds in which the engines take turns."""
    kit, chance = harness(), random.Random(11)
    shares = [
        kit.tenant("flood", "60%", "60%", max_sequences=RUNNING, max_batched_tokens_share="10%"), kit.tenant("quiet"),
    ]  # fmt: skip
    with engines(model("smollm2"), ARGUMENTS, shares, asynchronous=False) as servers:
        results = {server.name: Measured() for server in servers}
        for server in servers:
            _sample(server, 5, chance)
        for number in range(ROUNDS):
            for server in servers if number % 2 else servers[::-1]:
                _take_turn(server, results[server.name], -(-samples // ROUNDS), chance)
        return results


def _take_turn(server: Server, measured: Measured, samples: int, chance: random.Random) -> None:
    measured.alone += _sample(server, samples, chance)
    crowded = STOCK_SAMPLES if server.name == "stock" else samples
    with flooded(server, measured) as flood:
        for done in range(0, crowded, BETWEEN_CHECKS):
            measured.crowded += _sample(server, min(BETWEEN_CHECKS, crowded - done), chance)
            flood.check()


def _sample(server: Server, samples: int, chance: random.Random) -> list[float]:
    """First tokens on one connection, the first one of which is left out: it pays for the handshake."""
    with contextlib.closing(server.connect()) as connection:
        return [_first_token_after_pause(server, connection, chance) for _ in range(samples + 1)][1:]


def _first_token_after_pause(server: Server, connection: http.client.HTTPConnection, chance: random.Random) -> float:
    time.sleep(chance.uniform(*PAUSE))
    return first_token(server, connection, chance)


def show(name: str, measured: Measured) -> str:
    """One line: both medians and their ratio."""
    alone, crowded = (1000 * median for median in measured.medians)
    return (
        f"{name:5}: alone {alone:.1f} ms, beside a flood {crowded:.1f} ms, ratio {measured.ratio:.2f} "
        f"(medians of {len(measured.crowded)}; the flood got {measured.served} answers)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="The noisy neighbour's effect on a quiet tenant.")
    parser.add_argument("--samples", type=int, default=60)
    args = parser.parse_args()
    results = measure(args.samples)
    print("time to the quiet tenant's first token")
    for name, measured in results.items():
        print(f"  {show(name, measured)}")
    print(f"  goal for ours: at most {GOAL}")


if __name__ == "__main__":
    main()
