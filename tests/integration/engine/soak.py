"""Three tenants living on one engine: what they ask, what disturbs them, and what each answer must be.

Not collected by pytest; `test_memory_soak.py` loads it. Everything random follows from one seed, as far as threads allow.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from blockwarden_core.policy import TenantShare

TENANTS, USERS, CLIENTS = "abc", 3, 4
MODELS = ("tiny",)
"""What requests name as their model; an adapter that the engine serves takes its place here."""
LONGEST = 48
"""Tokens of the longest answer."""
EPSILON = 1e-3
"""Two best candidates whose log probabilities are closer than this may change places: sums of float32 in another order."""
SHARES: tuple[tuple[int | str, int | str], ...] = (("30%", "30%"), ("20%", "45%"), (24, 24), ("25%", "100%"))
"""(guaranteed, limit) that a tenant may get; the smallest limit holds the longest request."""
GONE = {"tenant_unknown", "salt_retired", "500"}
"""How a request may end whose tenant left, or whose salt was rotated, while it was on its way."""
SETTLING = 5.0
"""Seconds in which the API process, which reads the policy file on its own, may lag behind the engine core."""


@dataclass(frozen=True)
class Task:
    """One prompt of a tenant, and what the engine answers the tenant alone: tokens, and the margin of each over the next best."""

    model: str
    prompt: list[int]
    tokens: list[int]
    margins: list[float]

    def differs(self, answer: Sequence[int]) -> str | None:
        """Where `answer` is not what the tenant alone gets, unless the reference itself was undecided there."""
        for at, (given, wanted) in enumerate(zip(answer, self.tokens, strict=False)):
            if given != wanted:
                return None if self.margins[at] < EPSILON else f"token {at} is {given}, alone {wanted} by {self.margins[at]:.4f}"
        return None


def learn(engine: Any, chance: random.Random, prompts: int) -> dict[str, list[Task]]:
    """Every tenant's tasks, answered while nobody else asks anything."""
    tasks = {}
    for tenant in TENANTS:
        stem = _tokens(chance, 160)
        made = [stem[: chance.randrange(160)] + _tokens(chance, chance.randrange(10, 330)) for _ in range(prompts)]
        wanted = [(model, prompt) for model in MODELS for prompt in made]
        token = engine.deployment.token(tenant, user="alone")
        with ThreadPoolExecutor(CLIENTS) as pool:
            tasks[tenant] = list(pool.map(partial(_answer_alone, engine, token), wanted))
    return tasks


def _answer_alone(engine: Any, token: str, asked: tuple[str, list[int]]) -> Task:
    model, prompt = asked
    answer = engine.complete(token, prompt, model=model, max_tokens=LONGEST, return_token_ids=True, logprobs=2,
                             return_tokens_as_token_ids=True)  # fmt: skip
    assert answer.status == 200, answer.body
    choice = answer.json()["choices"][0]
    best = [sorted(top.values(), reverse=True) for top in choice["logprobs"]["top_logprobs"]]
    return Task(model, prompt, choice["token_ids"], [first - second for first, second, *_ in best])


def _tokens(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(5, 480) for _ in range(count)]


@dataclass
class Life:
    """What a tenant is at this moment, and when it last came, went or rotated its salt."""

    generation: int = 1
    member: bool = True
    share: tuple[int | str, int | str] = SHARES[0]
    caps: dict[str, Any] = field(default_factory=dict)
    changed: float = 0.0

    def touch(self) -> None:
        self.changed = time.monotonic()


@dataclass
class Soak:
    """Load and disturbances on one engine until `stop` is set.

    Attributes:
        seen: how often each thing happened: answers compared, aborts, requests refused while their tenant was gone, edits.
        wrong: answers that are not the tenant's own, and refusals that nothing explains.
    """

    engine: Any
    tasks: dict[str, list[Task]]
    seed: int
    seen: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    lives: dict[str, Life] = field(default_factory=lambda: {tenant: Life() for tenant in TENANTS})

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Clients of every tenant and whoever edits the policy, while the context lasts."""
        jobs: list[Callable[[random.Random], None]] = [self._edit]
        jobs += [partial(self._ask, tenant) for tenant in TENANTS for _ in range(CLIENTS)]
        with ThreadPoolExecutor(len(jobs)) as pool:
            workers = [pool.submit(self._until_stopped, job, random.Random(self.seed + at)) for at, job in enumerate(jobs)]
            try:
                yield
            finally:
                self.stop.set()
        for worker in workers:
            worker.result()

    def _until_stopped(self, job: Callable[[random.Random], None], chance: random.Random) -> None:
        while not self.stop.is_set():
            job(chance)

    # ---- requests --------------------------------------------------------------------------------------------------------

    def _ask(self, tenant: str, chance: random.Random) -> None:
        life, task = self.lives[tenant], chance.choice(self.tasks[tenant])
        started = time.monotonic()
        token = self.engine.deployment.token(tenant, user=f"u{chance.randrange(USERS)}", generation=life.generation)
        length = chance.randrange(1, LONGEST + 1)
        if chance.random() < 0.3:
            self._abort(chance, token, task)
            return
        answer = self.engine.complete(token, task.prompt, model=task.model, max_tokens=length, return_token_ids=True)
        if answer.status == 200 and answer.json()["choices"][0]["finish_reason"] == "length":
            self._judge(task, tenant, answer.json()["choices"][0]["token_ids"], length)
            return
        error = answer.json().get("error", {})
        if {str(error.get("code")), str(answer.status)} & GONE and (not life.member or life.changed > started - SETTLING):
            self.seen["ended by the policy"] += 1
        else:
            self.wrong.append(f"{tenant}: status {answer.status}: {answer.body[:200]!r}")

    def _judge(self, task: Task, tenant: str, tokens: list[int], length: int) -> None:
        self.seen["compared"] += 1
        if len(tokens) != length:
            self.wrong.append(f"{tenant}: {len(tokens)} tokens instead of {length}")
        elif (difference := task.differs(tokens)) is not None:
            self.wrong.append(f"{tenant}: prompt of {len(task.prompt)} tokens: {difference}")

    def _abort(self, chance: random.Random, token: str, task: Task) -> None:
        """A client that goes away: while its request waits, during its prompt, or in the middle of its answer."""
        body = {"model": task.model, "prompt": task.prompt, "max_tokens": LONGEST, "temperature": 0, "ignore_eos": True}
        with contextlib.closing(self.engine.connection()) as connection:
            raw = json.dumps(body | {"stream": True, "cache_salt": token})
            connection.request("POST", "/v1/completions", raw, {"content-type": "application/json"})
            if chance.random() < 0.3:
                time.sleep(chance.random() * 0.05)
            else:
                response = connection.getresponse()
                for _ in range(chance.randrange(2 * LONGEST)):
                    response.readline()
        self.seen["aborted"] += 1

    # ---- the policy ------------------------------------------------------------------------------------------------------

    def _edit(self, chance: random.Random) -> None:
        tenant = chance.choice(TENANTS)
        life, kind = self.lives[tenant], chance.choice(("share", "share", "rotate", "leave", "cap"))
        if kind == "share":
            life.share = chance.choice(SHARES)
        elif kind == "cap":
            life.caps = chance.choice([{}, {"max_sequences": 2}, {"max_batched_tokens_share": "30%"}])
        else:
            life.touch()
            life.generation += kind == "rotate"
            life.member = kind != "leave"
        self._publish()
        if kind == "leave":
            self.engine.wait_for(lambda report: all(share.name != tenant for share in report.tenants), 120)
            life.member = True
            self._publish()
        if kind in ("rotate", "leave"):
            life.touch()
        self.seen[f"edit: {kind}"] += 1
        self.stop.wait(chance.random() * 2)

    def _publish(self) -> None:
        shares = [
            TenantShare(name=name, guaranteed=life.share[0], limit=life.share[1], generation=life.generation,
                        floor=life.generation, **life.caps)
            for name, life in self.lives.items() if life.member
        ]  # fmt: skip
        version = self.engine.deployment.share(*shares).version
        self.engine.wait_for(lambda report: report.policy_version == version and report.reload_error is None, 60)


def swap_mount(root: Path) -> Callable[[str, str], None]:
    """A `Deployment.mount` that does what the kubelet does to a ConfigMap: a new directory, and one link swapped to it."""
    mounted: list[Path] = []

    def mount(relative: str, text: str) -> None:
        file = root / relative
        fresh = file.parent / f"..{time.time_ns()}"
        fresh.mkdir()
        (fresh / file.name).write_text(text)
        _link(file.parent / "..data", fresh.name)
        _link(file, f"..data/{file.name}")
        for stale in mounted:
            shutil.rmtree(stale)
        mounted[:] = [fresh]

    return mount


def _link(path: Path, target: str) -> None:
    staged = path.with_name(f"{path.name}.staged")
    staged.symlink_to(target)
    staged.replace(path)
