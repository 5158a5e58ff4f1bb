"""A noisy neighbour: how much later a quiet tenant's first token comes while another tenant floods, stock and with the plugin.

    $(python tools/engine_env.py) tests/bench/neighbour.py [--samples 30]

Per engine: the quiet tenant's short requests alone, then the same while the flooding tenant keeps far more requests in the engine
than its quota holds. Prints the medians of the time to the first token and their ratio. The flooding tenant fills the pool on the
stock engine, where there are no quotas, and its own share on ours.
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from engine_pair import Server, engine_pair, harness, model

FLOOD = 48
ARGUMENTS = [
    "--dtype=float32", "--max-model-len=1024", "--block-size=32", "--num-gpu-blocks-override=129", "--enforce-eager",
    "--max-num-seqs=32", "--max-num-batched-tokens=1024",
]  # fmt: skip
GOAL = 1.5


def prompt(chance: random.Random, length: int) -> list[int]:
    return [chance.randrange(5, 400) for _ in range(length)]


def first_token(server: Server, chance: random.Random) -> float:
    """Seconds to the first token of a short streamed request of the quiet tenant."""
    connection = server.connect()
    connection.connect()
    start = time.perf_counter()
    response = server.complete(connection, "quiet", "q", prompt=prompt(chance, 40), max_tokens=4, stream=True)
    response.readline()
    took = time.perf_counter() - start
    response.read()
    connection.close()
    return took


@contextmanager
def flood(server: Server) -> Iterator[None]:
    """FLOOD clients of the flooding tenant, each with one long request after the other."""
    stop = threading.Event()

    def drive(seed: int) -> None:
        chance, connection = random.Random(seed), server.connect()
        while not stop.is_set():
            server.complete(connection, "flood", f"f{seed}", prompt=prompt(chance, 300), max_tokens=300).read()
        connection.close()

    threads = [threading.Thread(target=drive, args=(seed,), daemon=True) for seed in range(FLOOD)]
    for thread in threads:
        thread.start()
    time.sleep(5)
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def measure(samples: int) -> dict[str, tuple[float, float]]:
    """Engine -> (median alone, median during the flood), in seconds."""
    kit, chance = harness(), random.Random(11)
    shares = [kit.tenant("flood", "60%", "60%", max_sequences=8, max_batched_tokens_share="50%"), kit.tenant("quiet")]
    medians = {}
    with engine_pair(model("tiny"), ARGUMENTS, shares) as pair:
        for server in pair:
            for _ in range(5):
                first_token(server, chance)
            alone = [first_token(server, chance) for _ in range(samples)]
            with flood(server):
                crowded = [first_token(server, chance) for _ in range(samples)]
            medians[server.name] = statistics.median(alone), statistics.median(crowded)
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description="The noisy neighbour's effect on a quiet tenant.")
    parser.add_argument("--samples", type=int, default=30)
    args = parser.parse_args()
    print(f"time to the quiet tenant's first token, medians of {args.samples}")
    for name, (alone, crowded) in measure(args.samples).items():
        print(f"  {name:5}: alone {alone * 1000:.1f} ms, beside a flood {crowded * 1000:.1f} ms, ratio {crowded / alone:.2f}")
    print(f"  goal for ours: at most {GOAL}")


if __name__ == "__main__":
    main()
