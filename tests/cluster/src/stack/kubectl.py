"""kubectl and helm, as subprocesses: what a user types, with errors that show what was typed and what came back."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class CommandError(Exception):
    """A command failed; the message shows it and its output."""


class Timeout(Exception):
    """Something did not become true in time; the message says what, and how it stood last."""


@dataclass(frozen=True)
class Cluster:
    """A cluster as a user has it: a kubeconfig, and the two tools."""

    kubeconfig: Path
    kubectl: str = "kubectl"
    helm: str = "helm"

    def run(self, *arguments: str, stdin: str | None = None, timeout: float = 120, tool: str | None = None) -> str:
        """Standard output of one kubectl (or `tool`) command.

        Raises:
            CommandError: the exit status is not 0.
        """
        command = [tool or self.kubectl, *arguments]
        environment = os.environ | {"KUBECONFIG": str(self.kubeconfig)}
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout, env=environment, check=False)
        if done.returncode:
            raise CommandError(f"`{' '.join(command)}` exited with {done.returncode}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """`kubectl get ... -o json`, parsed."""
        return json.loads(self.run("get", *arguments, "-o", "json"))

    def apply(self, manifest: str | Mapping[str, Any]) -> None:
        """Applies one manifest, YAML text or a value, server-side."""
        text = manifest if isinstance(manifest, str) else json.dumps(manifest)
        self.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)

    def secret(self, namespace: str, name: str, key: str) -> str:
        """One value of a Secret, decoded."""
        return base64.b64decode(self.get("-n", namespace, "secret", name)["data"][key]).decode()

    def install(self, release: str, chart: Path, *arguments: str, timeout: float = 300) -> str:
        """`helm upgrade --install`."""
        return self.run("upgrade", "--install", release, str(chart), *arguments, tool=self.helm, timeout=timeout)


def wait_for(what: str, probe: Callable[[], T | None], *, timeout: float, every: float = 0.5) -> T:
    """The probe's first true value.

    Raises:
        Timeout: there was none in time.
    """
    deadline, last = time.monotonic() + timeout, ""
    while time.monotonic() < deadline:
        try:
            if value := probe():
                return value
        except CommandError as error:
            last = f": {error}"
        time.sleep(every)
    raise Timeout(f"{what} did not come within {timeout:.0f} s{last}")
