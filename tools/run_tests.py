"""Runs the test levels in order and says at the end how many tests ran in each.

A level is a directory under tests/ and the Python that runs it: most run in the workspace's environment, those that import
vLLM in the engine's (`tools/engine_env.py`). A level fails when a test fails, when it has no tests, or when a test is skipped
anywhere but in tests/device: on this machine a skip would be a result that nobody saw.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Level:
    """One level of the pyramid: where its tests are and which environment runs them."""

    paths: tuple[str, ...]
    ignore: tuple[str, ...] = ()
    engine: bool = False
    may_skip: bool = False


LEVELS = {
    "unit": Level(("tests/unit",)),
    "property": Level(("tests/property",)),
    "golden": Level(("tests/golden",)),
    "contract": Level(("tests/contract",)),
    "component": Level(("tests/component",)),
    "integration": Level(("tests/integration",), ignore=("tests/integration/engine",)),
    "engine": Level(("tests/integration/engine",), engine=True),
    "e2e": Level(("tests/e2e",)),
    "goals": Level(("tests/bench",), engine=True),
    "device": Level(("tests/device",), engine=True, may_skip=True),
    "machine": Level(("tests/property/engine",)),
    "scheduler-machine": Level(("tests/integration/engine/scheduler/test_scheduler_machine.py",), engine=True),
}


@dataclass(frozen=True)
class Outcome:
    """What a level's run came to."""

    name: str
    ran: int
    failed: int
    skipped: int
    seconds: float
    status: int

    def problem(self) -> str | None:
        """Why the level counts as failed, or None."""
        if self.failed or self.status:
            return f"{self.failed} failed (pytest exit status {self.status})"
        if self.skipped and not LEVELS[self.name].may_skip:
            return f"{self.skipped} skipped"
        if not self.ran and not self.skipped:
            return "no tests found"
        return None


def interpreter(*, engine: bool) -> str:
    """The Python of the workspace or of the engine's environment, which is made where it is missing."""
    if not engine:
        return sys.executable
    made = subprocess.run([sys.executable, ROOT / "tools/engine_env.py"], check=True, stdout=subprocess.PIPE, text=True)
    return made.stdout.strip().splitlines()[-1]


def run(name: str) -> Outcome:
    """One level, its output passed through as it comes."""
    level, started = LEVELS[name], time.monotonic()
    print(f"\n=== {name} " + "=" * (100 - len(name)), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [interpreter(engine=level.engine), "-m", "pytest", "-q", f"--junitxml={report}", *level.paths]
        command += [f"--ignore={path}" for path in level.ignore]
        status = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}, check=False).returncode
        ran, failed, skipped = count(report)
    return Outcome(name, ran, failed, skipped, time.monotonic() - started, status)


def count(report: Path) -> tuple[int, int, int]:
    """How many tests ran, failed and were skipped, from a JUnit report; nothing ran where there is none."""
    if not report.exists():
        return 0, 1, 0
    suites = list(ET.parse(report).getroot().iter("testsuite"))
    total, failures, errors, skipped = (
        sum(int(s.get(key, 0)) for s in suites) for key in ("tests", "failures", "errors", "skipped")
    )
    return total - skipped, failures + errors, skipped


def main(names: list[str]) -> int:
    """Runs the named levels; later ones run even when an earlier one failed, so that one run shows everything."""
    outcomes = [run(name) for name in names]
    print(f"\n{'level':<12} {'ran':>6} {'failed':>7} {'skipped':>8} {'seconds':>9}")
    for outcome in outcomes:
        verdict = outcome.problem() or "ok"
        print(f"{outcome.name:<12} {outcome.ran:>6} {outcome.failed:>7} {outcome.skipped:>8} {outcome.seconds:>9.1f}  {verdict}")
    return int(any(outcome.problem() for outcome in outcomes))


if __name__ == "__main__":
    if not sys.argv[1:] or (unknown := set(sys.argv[1:]) - set(LEVELS)):
        sys.exit(f"usage: run_tests.py LEVEL...; the levels are {', '.join(LEVELS)}")
    sys.exit(main(sys.argv[1:]))
