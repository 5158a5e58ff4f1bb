"""Prefix-cache hits beside stock vLLM: a scope hits exactly what stock gives it, and nobody hits what another scope computed.

A set is a few prompts that share random prefixes, sent one after the other by users of several tenants; sets run beside each
other. Three opinions must agree to the token: this engine's, stock vLLM's (given the scope's name as its salt), and the rule
itself: the longest prefix in whole blocks, but the last token, that the scope itself has sent before.

Equality means something only where neither engine evicts: stock's pool is large enough for everything, and this one's cache is
emptied between batches of sets that fit into every tenant's quota. Under pressure the pools differ by design (a tenant's quota
here, the whole pool there), so there only the bound remains: never more than the scope's own.
"""

from __future__ import annotations

import json
import random
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SETS = 1000
SCOPES = [(tenant, user) for tenant in "abc" for user in ("u1", "u2")]
BLOCK = 32
QUOTA = 36
"""Blocks that a batch may leave in each tenant's cache: 30 % of the harness's 128, and one to spare."""
THREADS = 8
ONE_SALT = """
import blockwarden_engine.enrol as enrol, blockwarden_engine.plugin as plugin
from dataclasses import replace
core.twin = admit, verify, enter = plugin._admit, enrol.verify_token, scheduler.ledger.enter
same = lambda token: replace(token, salt="one salt")
plugin._admit = lambda request: (lambda token, share: (same(token), share))(*admit(request))
enrol.verify_token = lambda *args, **kwargs: same(verify(*args, **kwargs))
scheduler.ledger.enter = lambda tenant, generation, salt: enter("a", generation, salt)
"""
"""A broken engine: every tenant's blocks are hashed under one salt and belong to one trust domain."""
OWN_SALTS = """
import blockwarden_engine.enrol as enrol, blockwarden_engine.plugin as plugin
plugin._admit, enrol.verify_token, _ = core.twin
del scheduler.ledger.enter, core.twin
"""


@dataclass(frozen=True)
class Ask:
    """One request of a set, and how many tokens of its prompt its own scope has computed before."""

    scope: tuple[str, str]
    prompt: list[int]
    own: int

    @property
    def blocks(self) -> int:
        """How many blocks its scope holds more, once it was answered."""
        return -(-(len(self.prompt) + 1) // BLOCK) - self.own // BLOCK


def make_set(chance: random.Random, longest: int) -> list[Ask]:
    """Three to five prompts cut from one stem, by two or three scopes; one is repeated word for word by another tenant."""
    stem, known, asks = _tokens(chance, chance.randrange(longest)), set[Any](), list[Ask]()
    scopes = chance.sample(SCOPES, chance.choice((2, 3)))
    while len({tenant for tenant, _ in scopes}) < 2:
        scopes = chance.sample(SCOPES, 2)
    for _ in range(chance.randrange(2, 5)):
        prompt = stem[: chance.randrange(len(stem) + 1)] + _tokens(chance, chance.randrange(1, 48))
        asks.append(_ask(chance.choice(scopes), chance.choice([prompt, asks[-1].prompt if asks else prompt]), known))
    first = chance.choice(asks)
    asks.append(_ask(next(scope for scope in scopes if scope[0] != first.scope[0]), first.prompt, known))
    return asks


def _ask(scope: tuple[str, str], prompt: list[int], known: set[Any]) -> Ask:
    prefixes = [(scope, tuple(prompt[:end])) for end in range(BLOCK, len(prompt) + 1, BLOCK)]
    own = max((len(prefix) for _, prefix in known.intersection(prefixes) if len(prefix) < len(prompt)), default=0)
    known.update(prefixes)
    return Ask(scope, prompt, own)


def _tokens(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(5, 480) for _ in range(count)]


def batches(sets: Iterable[list[Ask]]) -> Iterator[list[list[Ask]]]:
    """Sets that leave at most QUOTA blocks in each tenant's cache together."""
    batch, held = list[list[Ask]](), Counter[str]()
    for asks in sets:
        more = Counter[str]()
        for ask in asks:
            more[ask.scope[0]] += ask.blocks
        if max((held + more).values()) > QUOTA:
            yield batch
            batch, held = [], Counter()
        batch.append(asks)
        held += more
    yield batch


class Side:
    """One of the two engines, and the connections to it that nobody uses at this moment."""

    def __init__(self, connect: Callable[[], Any], salt: Callable[[str, str], str]) -> None:
        self._connect, self._salt, self._idle = connect, salt, list[Any]()

    def cached(self, ask: Ask) -> int:
        """The prompt tokens that it found in its cache."""
        connection = self._idle.pop() if self._idle else self._connect()
        body = {"model": "tiny", "prompt": ask.prompt, "max_tokens": 1, "temperature": 0, "cache_salt": self._salt(*ask.scope)}
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        self._idle.append(connection)
        assert response.status == 200, answer
        return int((answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0)

    def one_salt(self) -> Side:
        """The same engine with one salt for everybody."""
        return Side(self._connect, lambda _tenant, _user: "one salt")

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


@dataclass
class Tally:
    """Prompt tokens: hit, hit although only others had computed them, and missed although the scope itself had."""

    asked: int = 0
    hit: int = 0
    foreign: int = 0
    missed: int = 0

    def count(self, ask: Ask, cached: int) -> None:
        self.asked += len(ask.prompt)
        self.hit += cached
        self.foreign += max(0, cached - ask.own)
        self.missed += max(0, ask.own - cached)


def run(sets: list[list[Ask]], *sides: Side) -> list[Tally]:
    """A tally per side; sets run beside each other, the requests of one after the other."""
    tallies, lock = [Tally() for _ in sides], threading.Lock()

    def ask_all(asks: list[Ask]) -> None:
        for ask in asks:
            found = [side.cached(ask) for side in sides]
            with lock:
                for tally, cached in zip(tallies, found, strict=True):
                    tally.count(ask, cached)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(ask_all, sets))
    return tallies


def add(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total = Tally(*(getattr(total, name) + getattr(tally, name) for name in ("asked", "hit", "foreign", "missed")))
    return total


@pytest.fixture(scope="module")
def stock(engines: Any, engine_pair: Any, tiny_model: Path, engine_arguments: tuple[str, ...]) -> Iterator[Side]:
    """Stock vLLM beside the shared engine, with a pool that holds everything that this module asks."""
    environment, arguments = engines.get("asynchronous").environment, [*engine_arguments, "--num-gpu-blocks-override=16384"]
    with (
        tempfile.TemporaryDirectory() as scratch,
        engine_pair.stock_engine(tiny_model, arguments, Path(scratch), environment) as server,
        closing(Side(server.connect, lambda tenant, user: f"{tenant}.{user}")) as side,
    ):
        yield side


@pytest.fixture
def ours(engine: Any) -> Iterator[Side]:
    """The shared engine."""
    with closing(Side(engine.connection, lambda tenant, user: str(engine.deployment.token(tenant, user=user)))) as side:
        yield side


@contextmanager
def one_salt(engine: Any) -> Iterator[None]:
    """The broken twin, in the running engine."""
    engine.core(ONE_SALT)
    try:
        yield
    finally:
        engine.core(OWN_SALTS)
        engine.empty_cache()


def draw(count: int, longest: int) -> tuple[list[list[Ask]], str]:
    """Random sets, and what to say about them where something is wrong."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    return [make_set(chance, longest) for _ in range(count)], f"sets of random.Random({seed})"


def test_hits_of_a_scope_equal_stocks_to_the_token_and_nobody_hits_anothers(engine: Any, ours: Side, stock: Side) -> None:
    sets, drawn = draw(SETS, 128)
    found = []
    for batch in batches(sets):
        engine.empty_cache()
        found.append(run(batch, ours, stock))
    mine, theirs = (add(side) for side in zip(*found, strict=True))
    print(f"{sum(map(len, sets))} requests in {len(sets)} sets, {len(found)} batches: {mine}")
    assert (theirs.foreign, theirs.missed) == (0, 0), drawn
    assert mine == theirs, drawn
    assert mine.hit > mine.asked / 10, drawn


def test_under_pressure_nobody_hits_what_another_scope_computed(ours: Side) -> None:
    sets, drawn = draw(60, 700)
    (found,) = run(sets, ours)
    assert found.foreign == 0, drawn
    assert found.hit > 0 < found.missed, f"no pressure: {drawn}"


@pytest.mark.parametrize("side", ["this engine", "stock"])
def test_salts_that_are_equal_across_tenants_are_noticed(engine: Any, ours: Side, stock: Side, side: str) -> None:
    sets, drawn = draw(15, 128)
    engine.empty_cache()
    if side == "stock":
        with closing(stock.one_salt()) as broken:
            (found,) = run(sets, broken)
    else:
        with one_salt(engine):
            (found,) = run(sets, ours)
    assert found.foreign > 0, drawn
