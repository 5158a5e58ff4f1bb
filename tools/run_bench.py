"""Runs the benchmarks one after the other. Each prints ratios of things measured side by side, in its own run.

python tools/run_bench.py                  # all of them
python tools/run_bench.py gateway cost     # some
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

from run_tests import ROOT, interpreter


@dataclass(frozen=True)
class Bench:
    """One script, and whether it needs the engine's environment."""

    path: str
    engine: bool = False


BENCHES = {
    "gateway": Bench("tests/bench/gateway/overhead.py"),
    "neighbour": Bench("tests/bench/neighbour.py", engine=True),
    "scrub": Bench("tests/bench/scrub.py", engine=True),
    "cost": Bench("tests/bench/cost.py", engine=True),
}


def main(names: list[str]) -> int:
    """Runs the named benches; later ones run even when an earlier one failed."""
    failed = []
    for name in names:
        bench = BENCHES[name]
        print(f"\n=== {name}", flush=True)
        if subprocess.run([interpreter(engine=bench.engine), bench.path], cwd=ROOT, check=False).returncode:
            failed.append(name)
    if failed:
        print(f"run-bench: failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    if unknown := set(sys.argv[1:]) - set(BENCHES):
        sys.exit(f"usage: run_bench.py [BENCH...]; there is no {', '.join(sorted(unknown))}, but {', '.join(BENCHES)}")
    sys.exit(main(sys.argv[1:] or list(BENCHES)))
