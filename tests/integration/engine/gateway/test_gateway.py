"""The gateway in front of the engine: whatever a client sends, the engine's own record shows the salt of who authenticated.

Both are the real processes. The expected salts are derived here, by core, from the secrets that the test has written.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from blockwarden_core import layout
from blockwarden_core.identity import Scope
from blockwarden_core.salt import verify_token

MARK = "SMUGGLED"
ANN = ("a", "ann")
TEXT = "What one tenant has asked, another must not be able to tell from an answer's time. "
BODIES: dict[str, dict[str, Any]] = {
    "a salt of its own": {"cache_salt": MARK},
    "an empty salt": {"cache_salt": ""},
    "transfer parameters": {"kv_transfer_params": {"do_remote_prefill": True, "remote_engine_id": MARK}},
    "extra arguments": {"vllm_xargs": {"cache_salt": MARK, "xkv_store": 1}},
    "encoder transfer": {"ec_transfer_params": {"id": MARK}},
    "unknown fields": {"salt": MARK, "extra_body": {"cache_salt": MARK}, "blockwarden": {"tenant": "b"}},
    "a request id": {"request_id": MARK},
    "a session id": {"session_id": MARK},
    "a priority": {"priority": -7},
    "a rank": {"data_parallel_rank": 0},
    "media settings": {"mm_processor_kwargs": {"id": MARK}, "multi_modal_uuids": [MARK], "media_io_kwargs": {"image": {}}},
    "a user": {"user": MARK, "metadata": {"tenant": MARK}, "prompt_cache_key": MARK, "safety_identifier": MARK},
}
HEADERS = [
    ("X-Request-Id", MARK), ("X-Session-ID", MARK), ("X-data-parallel-rank", "0"), ("X-Vllm-Priority", "-7"),
    ("X-Tenant-Id", "b"), ("X-Blockwarden-Tenant", "b"), ("X-Blockwarden-Boot", MARK), ("X-Cache-Salt", MARK),
    ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), ("endpoint-load-metrics-format", "text"),
    ("Cookie", MARK), ("X-Forwarded-For", MARK),
]  # fmt: skip
numbers = itertools.count()


def fresh(what: str = "") -> str:
    """A prompt of a few blocks that nobody has sent yet."""
    return f"{what} {next(numbers)} " + TEXT * 2


def check_record(records: list[dict[str, Any]], salt: str) -> None:
    """The engine got one request, with this salt and nothing of a client's."""
    [record] = records
    assert record["cache_salt"] == salt
    assert record["reach"] == {}
    assert record["priority"] == 0
    assert "gw-" in record["request_id"]
    assert MARK not in record["whole"]
    assert "0af7651916cd43dd8448eb211c80319c" not in record["whole"]


def salt_of_ann(front: Any) -> str:
    token: str = front.token("a", Scope.TENANT, "a")
    return token


@pytest.mark.parametrize("what", BODIES)
def test_a_body_changes_nothing(front: Any, path: str, body_for: Any, what: str) -> None:
    reply = front.post(path, body_for(fresh(what), **BODIES[what]), ANN)
    assert reply.status == 200, reply.body
    check_record(front.records(), salt_of_ann(front))


def test_anothers_valid_token_changes_nothing(front: Any, path: str, body_for: Any) -> None:
    for stolen in (
        front.token("b", Scope.TENANT, "b"),
        front.token("shared", Scope.NONE),
        front.token("c", Scope.USER, "c", "ann"),
    ):
        smuggled = {"cache_salt": stolen, "vllm_xargs": {"cache_salt": stolen}}
        assert front.post(path, body_for(fresh("token"), **smuggled), ANN, [("X-Cache-Salt", stolen)]).status == 200
        records = front.records()
        check_record(records, salt_of_ann(front))
        assert stolen not in records[0]["whole"]


def test_headers_change_nothing(front: Any, path: str, body_for: Any) -> None:
    eve = f"Bearer {front.keys['b', 'ann']}"
    for header in (*HEADERS, ("X-Authorization", eve), ("Proxy-Authorization", eve), ("X-Api-Key", front.keys["b", "ann"])):
        assert front.post(path, body_for(fresh(header[0])), ANN, [header]).status == 200, header
        check_record(front.records(), salt_of_ann(front))
    assert front.post(path, body_for(fresh("all")), ANN, HEADERS).status == 200
    check_record(front.records(), salt_of_ann(front))


def test_what_cannot_be_dropped_reaches_no_engine(front: Any, path: str, body_for: Any) -> None:
    two_keys = [("Authorization", f"Bearer {front.keys['b', 'ann']}")]
    assert front.post(path, body_for(fresh("two keys")), ANN, two_keys).status == 401
    media = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}, "uuid": MARK}
    said = [{"role": "user", "content": [{"type": "text", "text": "hi"}, media]}]
    assert front.post("/v1/chat/completions", {"model": "tiny", "messages": said}, ANN).status == 400
    wider = [(layout.SCOPE_HEADER, "None")]
    assert front.post(path, body_for(fresh("wider")), ANN, wider).status == 403
    assert front.records() == []


def test_ids_of_text_parts_are_left_behind(front: Any) -> None:
    part = {"type": "text", "text": fresh("part"), "uuid": MARK, "cache_salt": MARK}
    body = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": [part], "uuid": MARK}]}
    assert front.post("/v1/chat/completions", body, ANN).status == 200
    check_record(front.records(), salt_of_ann(front))


@pytest.mark.parametrize(
    ("what", "seen"),
    [("anothers token", "v1.b.1"), ("extra arguments", "extra_args.*cache_salt"), ("transfer parameters", "remote_engine_id"),
     ("a request id", MARK)],
)  # fmt: skip
def test_the_same_check_catches_a_client_without_a_gateway(front: Any, path: str, what: str, seen: str) -> None:
    """The broken twin: the client's own body and headers at the engine, whose own check of fields is lifted too."""
    text: dict[str, Any] = {"prompt": fresh(what)}
    if path.endswith("/chat/completions"):
        text = {"messages": [{"role": "user", "content": text["prompt"]}]}
    smuggled = BODIES.get(what, {}) | {"cache_salt": front.token("b" if what == "anothers token" else "a", Scope.TENANT, "a")}
    headers = {layout.REQUEST_ID_HEADER: MARK if what == "a request id" else "gw-0"}
    with front.unguarded():
        answer = front.engine.request("POST", path, {"model": "tiny", "max_tokens": 2, **text, **smuggled}, headers)
    assert answer.status == 200, answer.body
    with pytest.raises(AssertionError, match=seen):
        check_record(front.records(), salt_of_ann(front))


def test_a_request_beyond_its_tenants_share_is_told_so(front: Any, path: str, body_for: Any) -> None:
    reply = front.post(path, body_for(fresh("huge"), max_tokens=800), ANN)
    error = json.loads(reply.body)["error"]
    assert (reply.status, error["param"]) == (400, "max_tokens")
    assert "this tenant's share" in error["message"]


Who = tuple[tuple[str, str], str | None]
SHARING: dict[Scope, tuple[Who, list[Who], list[Who]]] = {
    Scope.NONE: ((("open", "ann"), None), [(("open", "bob"), None), (("public", "ann"), None)], [(("a", "ann"), None)]),
    Scope.TENANT: ((("a", "ann"), None), [(("a", "bob"), None)], [(("b", "ann"), None), (("a", "ann"), "one")]),
    Scope.USER: ((("c", "ann"), None), [], [(("c", "bob"), None), (("a", "ann"), None), (("c", "ann"), "one")]),
    Scope.SESSION: (
        (("s", "ann"), "one"), [], [(("s", "ann"), "two"), (("s", "bob"), "one"), (("s", "ann"), None), (("c", "ann"), "one")],
    ),
}  # fmt: skip
"""Scope -> who asks first (API key, session), who shares with it, and who does not."""


def cached(front: Any, path: str, body: dict[str, Any], who: Who) -> int:
    key, session = who
    reply = front.post(path, body, key, [] if session is None else [(layout.SESSION_HEADER, session)])
    assert reply.status == 200, reply.body
    count: int = reply.cached
    return count


@pytest.mark.parametrize("scope", SHARING)
def test_a_scope_shares_with_whom_it_says(front: Any, path: str, body_for: Any, scope: Scope) -> None:
    first, friends, others = SHARING[scope]
    body = body_for(fresh(scope.value))
    assert cached(front, path, body, first) == 0
    assert cached(front, path, body, first) > 0
    assert [cached(front, path, body, other) for other in others] == [0] * len(others)
    assert all(cached(front, path, body, friend) > 0 for friend in friends)
    salts = [record["cache_salt"] for record in front.records()]
    ids = {Scope.NONE: (), Scope.TENANT: ("a",), Scope.USER: ("c", "ann"), Scope.SESSION: ("s", "ann", "one")}[scope]
    expected = front.token("shared" if scope is Scope.NONE else first[0][0], scope, *ids)
    ours = [salts[0], salts[1], *salts[2 + len(others) :]]
    assert set(ours) == {expected}
    assert expected not in salts[2 : 2 + len(others)]
    assert len(set(salts)) == 1 + len(others)


def test_scope_request_shares_with_nobody(front: Any, path: str, body_for: Any) -> None:
    body, keys = body_for(fresh("request")), front.engine.deployment.keys
    assert [cached(front, path, body, (("r", "ann"), session)) for session in (None, None)] == [0, 0]
    salts = [record["cache_salt"] for record in front.records()]
    tokens = [verify_token(salt, engine_keys=keys.accepted, policy_uid=front.engine.deployment.policy_uid) for salt in salts]
    assert {(token.tenant, token.generation) for token in tokens} == {("r", 1)}
    assert len({token.salt for token in tokens}) == 2


CLIENTS = 3


class Steady:
    """Clients that ask without a pause until told to stop."""

    def __init__(self, front: Any, clients: Callable[[int], tuple[str, dict[str, Any]]], count: int) -> None:
        self._front, self._clients = front, clients
        self._stop = threading.Event()
        self.replies: list[Any] = []
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(count)]

    def __enter__(self) -> Steady:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def more(self, count: int) -> None:
        """Waits for `count` further answers."""
        wanted = len(self.replies) + count
        while len(self.replies) < wanted and any(thread.is_alive() for thread in self._threads):
            self._stop.wait(0.02)

    def _ask(self, number: int) -> None:
        path, body = self._clients(number)
        while not self._stop.is_set():
            self.replies.append(self._front.post(path, body, ANN))


def test_a_rotation_under_load_fails_nobody(front: Any) -> None:
    """The operator's three phases (docs/protocols.md), by hand."""
    old, prompt = salt_of_ann(front), fresh("rotation")
    chat = {"messages": [{"role": "user", "content": prompt}], "stream_options": {"include_usage": True}, "stream": True}
    common = {"model": "tiny", "max_tokens": 8, "ignore_eos": True}
    kinds = [("/v1/completions", common | {"prompt": prompt}), ("/v1/chat/completions", common | chat)]
    with Steady(front, lambda number: kinds[number % 2], CLIENTS) as steady:
        steady.more(6)
        front.generations["a"] = 2
        front.mount_keyring()
        front.wait_for(lambda report: report.generations["a"] == 2)
        front.share(a=(2, 1))
        front.wait_for(lambda report: "1" not in report.in_flight.get("a", {}))
        front.share(a=(2, 2))
        front.engine.wait_for(lambda report: all(t.stale_blocks == t.stale_requests == 0 for t in report.tenants))
        steady.more(6)
    assert [reply.status for reply in steady.replies] == [200] * len(steady.replies)
    assert all(reply.complete for reply in steady.replies)
    salts = [record["cache_salt"] for record in front.records()]
    new = salt_of_ann(front)
    assert len(salts) == len(steady.replies) >= 12
    assert set(salts) == {old, new}
    late = salts[salts.index(new) :].count(old)
    assert late < CLIENTS, "more of the old generation came after the new than the other clients had under way"
    refused = front.engine.complete(old, prompt)
    assert (refused.status, refused.json()["error"]["code"]) == (403, "salt_retired")


def test_a_gateway_that_lags_behind_tries_once_more(front: Any, path: str, body_for: Any) -> None:
    """The engine retires a generation that the gateway still uses; the new keyring is mounted but not read yet."""
    before, generation = front.retried("retired"), front.generations["b"] + 1
    front.share(b=(generation, generation))
    waiting = front.post(path, body_for(fresh("too early")), ("b", "ann"))
    assert waiting.status == 503, "without a newer keyring there is nothing to try again with"
    front.generations["b"] = generation
    front.mount_keyring()
    reply = front.post(path, body_for(fresh("lagging")), ("b", "ann"))
    assert reply.status == 200, reply.body
    assert reply.complete
    check_record(front.records(), front.token("b", Scope.TENANT, "b"))
    assert front.retried("retired") == before + 1, "it was sent again once"
