"""`make demo`: the product's main job on this machine, from nothing to an isolation table, and what to type next.

python -m stack.demo up      brings everything up, shows isolation, restart and rotation, and leaves it running
python -m stack.demo down    removes every trace
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from localnode import paths
from localnode.errors import LocalNodeError
from localnode.processes import Process
from localnode.target import Target, local_node, resolve
from stack import control, deploy, forward, images
from stack.client import Client
from stack.isolation import Expected, Row, render_table
from stack.kubectl import Cluster, CommandError, Timeout
from stack.nextsteps import next_steps
from stack.phases import Phases, say
from stack.prompts import private_prompt
from stack.steady import Record, steady_client

NODE: Final = "bw-demo"
PORT: Final = 18080


class DemoFailed(Exception):
    """The demo ran, and showed something that must not be."""


def ask(client: Client, phase: str, who: str, expected: Expected, prompt: str) -> Row:
    """One row of the table: the prompt, asked once.

    Raises:
        DemoFailed: the request was not answered.
    """
    answer = client.chat(images.MODEL, prompt)
    if answer.status != 200 or not answer.whole:
        raise DemoFailed(f"{who} got status {answer.status} in phase {phase}: {answer.body or answer.text[:300]}")
    return Row(phase, who, expected, answer.cached_tokens, answer.prompt_tokens, answer.first_token)


def show_control(cluster: Cluster, image: str) -> list[Row]:
    """A stock engine: what the second tenant learns there."""
    prompt = private_prompt(secrets.token_hex(4))
    with control.stock_vllm(cluster, image) as client:
        return [
            ask(client, "stock vLLM, no isolation", "A", Expected.NOTHING, prompt),
            ask(client, "stock vLLM, no isolation", "A again", Expected.PROMPT, prompt),
            ask(client, "stock vLLM, no isolation", "B (a leak)", Expected.PROMPT, prompt),
        ]


class Demo:
    """The phases after the installation, over one long prompt that acme and globex both ask."""

    def __init__(self, deployed: deploy.Deployed, url: str) -> None:
        self.deployed = deployed
        self.acme, self.globex = (Client(url, deployed.api_key(tenant), timeout=300) for tenant in deploy.TENANTS)
        self.prompt = private_prompt(secrets.token_hex(4))

    def isolation(self) -> list[Row]:
        """A → 0, A → the prompt, B → 0."""
        return self._both("blockwarden")

    def restart(self) -> list[Row]:
        """After an engine restart: A → 0, B → 0."""
        self.deployed.restart_engine()
        return [
            ask(self.acme, "engine restarted", "A (acme)", Expected.NOTHING, self.prompt),
            ask(self.globex, "engine restarted", "B (globex)", Expected.NOTHING, self.prompt),
        ]

    def rotation(self) -> tuple[list[Row], Record]:
        """After a rotation, everybody's cache is empty; a steady client asks all along."""
        with steady_client(self.globex, images.MODEL) as record:
            self.deployed.rotate(f"demo-{secrets.token_hex(4)}")
        return self._both("salt rotated"), record

    def _both(self, phase: str) -> list[Row]:
        return [
            ask(self.acme, phase, "A (acme)", Expected.NOTHING, self.prompt),
            ask(self.acme, phase, "A (acme) again", Expected.PROMPT, self.prompt),
            ask(self.globex, phase, "B (globex)", Expected.NOTHING, self.prompt),
        ]


def up(node: str = NODE, port: int = PORT) -> tuple[Target, deploy.Deployed, str]:
    """Everything, in phases, each with its time; returns what is left running and its base URL.

    Raises:
        DemoFailed: a row of the table, or the steady client, showed what must not be.
    """
    phases, rows = Phases(), list[Row]()
    with phases.phase("cluster: the given one, or a local node in its own namespaces"):
        target = resolve(node)
        cluster = deploy.cluster_of(target)
    with phases.phase("images: operator, gateway, engine with SmolLM2"):
        built = images.ensure(target)
    with phases.phase("helm install of the stack"):
        deploy.install(cluster, built)
    with phases.phase("control: the same requests to a stock vLLM"):
        rows += show_control(cluster, built.engine)
    with phases.phase("kubectl apply of examples/demo.yaml, until Ready"):
        deployed = deploy.apply_policy(cluster, built)
        deployed.wait_ready()
        url = _publish(cluster, port)
        demo = Demo(deployed, url)
    with phases.phase("isolation: one prompt, two tenants"):
        rows += demo.isolation()
    with phases.phase("engine restart"):
        rows += demo.restart()
    with phases.phase("salt rotation by annotation, beside a steady client"):
        rotated, record = demo.rotation()
        rows += rotated
    say("\n" + render_table(rows))
    say(f"\nduring the rotation a steady client got {record.answered} answers and {len(record.failures)} failures")
    say("\n" + phases.summary())
    _judge(rows, record)
    say(next_steps(deployed, url))
    return target, deployed, url


def down(node: str = NODE) -> None:
    """Every trace of the demo: on the local node the node itself, on another cluster what was installed."""
    _stop_forward()
    if local := local_node(node):
        local.down()
        return
    deploy.remove(deploy.cluster_of(resolve(node)))


def _judge(rows: list[Row], record: Record) -> None:
    wrong = [row for row in rows if not row.holds]
    if wrong:
        raise DemoFailed(f"{len(wrong)} rows are not as they must be: see NO in the table")
    if record.failures or not record.answered:
        raise DemoFailed(f"the steady client had {record.answered} answers and these failures: {record.failures[:3]}")


def _publish(cluster: Cluster, port: int) -> str:
    """The gateway on a loopback port, by a port-forward that stays when the demo ends."""
    _stop_forward()
    process, url = forward.start(cluster, deploy.NAMESPACE, f"service/{deploy.POLICY}-gateway", 8080, _state("log"), local=port)
    process.save(_state("json"))
    return url


def _stop_forward() -> None:
    running = Process.load(_state("json"))
    if running is not None:
        forward.stop(running)
    for suffix in ("json", "log"):
        _state(suffix).unlink(missing_ok=True)


def _state(suffix: str) -> Path:
    return paths.made(paths.cache() / "demo") / f"port-forward.{suffix}"


def main(arguments: list[str]) -> int:
    """The two verbs; a failure is one sentence on standard error and exit status 1."""
    verbs: dict[str, Callable[[], object]] = {"up": up, "down": down}
    if len(arguments) != 1 or arguments[0] not in verbs:
        say("usage: python -m stack.demo up|down")
        return 2
    try:
        verbs[arguments[0]]()
    except (DemoFailed, LocalNodeError, CommandError, Timeout) as error:
        sys.stderr.write(f"\ndemo: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
