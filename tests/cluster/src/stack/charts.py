"""The charts as a user has them: the stack's dependencies built by path, everything rendered and checked by the pinned helm.

They are copied before they are built, so that a checkout stays free of archives that go stale.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localnode import binaries

from .kubectl import CommandError

ROOT = Path(__file__).resolve().parents[4]
API = "blockwarden.dev/v1alpha1/TenantPolicy"


@dataclass(frozen=True)
class Charts:
    """A copy of `charts/` and `helm/` with the dependencies in place."""

    root: Path
    helm: str

    @property
    def stack(self) -> Path:
        return self.root / "helm/blockwarden"

    @property
    def operator(self) -> Path:
        return self.root / "charts/blockwarden-operator"

    def run(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        """Standard output of one helm command; `values` come after every other source of values.

        Raises:
            CommandError: the exit status is not 0; the message holds what helm said.
        """
        command = [self.helm, *arguments, *(("--values", "-") if values is not None else ())]
        done = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise CommandError(f"`{' '.join(command)}` exited with {done.returncode}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def render(self, chart: Path, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        """`helm template` of a chart as release `blockwarden` in namespace `blockwarden-system`."""
        return self.run("template", "blockwarden", str(chart), "--namespace", "blockwarden-system", *arguments, values=values)


def build_charts(target: Path) -> Charts:
    """Copies the charts below `target`, an empty directory, and builds the stack's dependencies. Needs no network."""
    binaries.ensure((binaries.HELM,))
    for name in ("charts", "helm"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("*.tgz"))
    charts = Charts(target, binaries.program("helm"))
    charts.run("dependency", "build", "--skip-refresh", str(charts.stack))
    return charts
