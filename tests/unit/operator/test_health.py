"""The operator's own port: alive while the queue goes round, and numbers."""

from __future__ import annotations

from aiohttp.test_utils import TestClient, TestServer

from blockwarden_operator.health import STALE_SECONDS, Health, make_app


async def test_a_stuck_queue_is_not_alive() -> None:
    now = [0.0]
    health = Health(lambda: now[0])
    health.watch_queue(lambda: 3)
    async with TestClient(TestServer(make_app(health))) as client:
        assert (await client.get("/healthz")).status == 200
        now[0] = STALE_SECONDS
        assert (await client.get("/healthz")).status == 500
        health.beat()
        assert (await client.get("/healthz")).status == 200
        text = await (await client.get("/metrics")).text()
        assert "blockwarden_operator_queue_keys 3.0" in text
        assert f"blockwarden_operator_seconds_since_event {STALE_SECONDS}" in text
        health.saw_event()
        assert "blockwarden_operator_seconds_since_event 0.0" in await (await client.get("/metrics")).text()
