"""Mounted files that change under a running gateway: nothing restarts, nothing is lost, nothing secret shows."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import sys

import aiohttp
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from blockwarden_core import layout
from blockwarden_core.keys import api_key_digest

CHAT = "/v1/chat/completions"
CANARY = "prompt-canary-7d1f"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": CANARY}]}


async def test_a_revoked_key_ends_and_a_new_one_begins(gateway, root):
    root.api_keys["keys"] = [{"digest": api_key_digest("bw-new"), "tenant": "acme"}]
    root.write()

    async def swapped() -> bool:
        return (await gateway.post(CHAT, ASK, key="acme"))[0] == 401

    await gateway.until(swapped)
    assert (await gateway.post(CHAT, ASK, key="bw-new"))[0] == 200


async def test_a_tenant_that_leaves_the_policy_is_nobody(gateway, root):
    root.policy["tenants"] = root.policy["tenants"][1:]
    root.write()
    gateway.process.mounts.reload()
    assert (await gateway.post(CHAT, ASK, key="acme"))[0] == 401
    assert (await gateway.post(CHAT, ASK, key="globex"))[0] == 200


async def test_a_new_keyring_is_used_at_once_while_old_streams_go_on(gateway, engine, root):
    engine.hold = asyncio.Event()
    bearer = {"authorization": "Bearer bw-acme-0123456789abcdef"}
    async with gateway.session.post(gateway.public + CHAT, json=ASK | {"stream": True}, headers=bearer) as old:
        await old.content.readany()
        before = engine.tenant_records[-1].body["cache_salt"]
        root.keyring["secrets"].append({"id": "s2", "secret": "A" * 43})
        root.keyring["generations"]["acme"] = 2
        root.write()

        async def reported() -> bool:
            status = await gateway.status()
            return (status["secretId"], status["generations"]["acme"]) == ("s2", 2)

        await gateway.until(reported)
        assert (await gateway.status())["inFlight"] == {"acme": {"1": 1}}
        assert 'blockwarden_gateway_salt_generation{tenant="acme"} 2.0' in (await gateway.inside("/metrics"))[1]
        assert (await gateway.post(CHAT, ASK))[0] == 200
        after = engine.tenant_records[-1].body["cache_salt"]
        assert (before.split(".")[2], after.split(".")[2]) == ("1", "2")
        assert before.split(".")[3] != after.split(".")[3]
        engine.hold.set()
        assert (await old.text()).endswith("data: [DONE]\n\n")
    assert (await gateway.status())["inFlight"] == {}


async def test_an_unchanged_salt_survives_a_restart_of_the_gateway(gateway, engine, start):
    await gateway.post(CHAT, ASK)
    second = await start()

    async def ready() -> bool:
        return (await second.inside(layout.READYZ_PATH))[0] == 200

    await second.until(ready)
    await second.post(CHAT, ASK)
    salts = {record.body["cache_salt"] for record in engine.tenant_records}
    assert len(salts) == 1


@pytest.mark.parametrize("path", [layout.GATEWAY_POLICY, layout.SALT_KEYRING, layout.ENGINE_KEYS, layout.API_KEYS])
async def test_a_broken_file_is_reported_and_changes_nothing(gateway, root, path):
    (root.path / path).write_text('{"secrets": "bw-secret-in-a-broken-file"')

    async def reported() -> bool:
        return path in ((await gateway.status())["reloadError"] or "")

    await gateway.until(reported)
    assert (await gateway.post(CHAT, ASK))[0] == 200
    assert "bw-secret" not in str(await gateway.status()) + gateway.log.getvalue()


async def test_certificates_are_taken_into_force_without_a_restart(gateway, root, authority, engine):
    async def serial() -> int:
        host, port = gateway.internal.removeprefix("https://").split(":")
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return x509.load_der_x509_certificate(shown).serial_number

    before = await serial()
    authority.write(root.path / layout.INTERNAL_TLS, "gateway.internal", ExtendedKeyUsageOID.SERVER_AUTH)
    authority.write(root.path / layout.CLIENT_TLS, "gateway", ExtendedKeyUsageOID.CLIENT_AUTH)

    async def changed() -> bool:
        return await serial() != before

    await gateway.until(changed)
    assert (await gateway.post(CHAT, ASK))[0] == 200
    (root.path / layout.INTERNAL_TLS / layout.TLS_CERT).write_text("not a certificate")

    async def reported() -> bool:
        return layout.INTERNAL_TLS in ((await gateway.status())["reloadError"] or "")

    await gateway.until(reported)
    assert await serial() != before


async def test_the_public_port_serves_tls_where_a_certificate_is_mounted(engine, start, root, authority):
    authority.write(root.path / layout.PUBLIC_TLS, "api.example", ExtendedKeyUsageOID.SERVER_AUTH)
    gateway = await start()

    async def ready() -> bool:
        return (await gateway.inside(layout.READYZ_PATH))[0] == 200

    await gateway.until(ready)
    trust = ssl.create_default_context(cafile=str(root.path / layout.PUBLIC_TLS / layout.TLS_CA))
    url = gateway.public.replace("http://", "https://") + CHAT
    bearer = {"authorization": "Bearer bw-acme-0123456789abcdef"}
    async with gateway.session.post(url, json=ASK, headers=bearer, ssl=trust, server_hostname="api.example") as response:
        assert response.status == 200
    with pytest.raises(aiohttp.ClientError):
        await gateway.post(CHAT, ASK)


async def test_nothing_secret_shows_anywhere(gateway, engine, root):
    await gateway.post(CHAT, ASK)
    await gateway.post(CHAT, ASK | {"stream": True, "n": 99})
    await gateway.post(CHAT, b'{"model": "' + CANARY.encode() + b'"')
    await gateway.post(CHAT, ASK, key=f"bw-guess-{CANARY}")
    await gateway.post(CHAT, ASK, X_Blockwarden_Session=f"session-{CANARY}")
    salts = [part for record in engine.records for part in str(record.body.get("cache_salt")).split(".")[3:]]
    assert salts
    shown = gateway.log.getvalue() + str(await gateway.status()) + (await gateway.inside("/metrics"))[1]

    def leaks(text: str) -> set[str]:
        return {secret for secret in (*root.secrets, *salts, CANARY) if secret in text}

    assert not leaks(shown)
    assert leaks(shown + salts[0]) == {salts[0]}  # the broken twin: the search does find one
    assert '"event":"request"' in shown
    assert '"tenant":"acme"' in shown


DRIVER = """
import asyncio, pathlib, sys
from blockwarden_gateway.logs import Log
from blockwarden_gateway.serve import serve
from blockwarden_gateway.settings import Settings
root, public, internal = sys.argv[1:]
asyncio.run(serve(Settings(pathlib.Path(root), "pod", "0b1c2d3e-policy", host="127.0.0.1", public_port=int(public),
    internal_port=int(internal), resolve_seconds=0.1, linger_seconds=0.5, drain_seconds=10), Log()))
"""


async def test_sigterm_drains_what_runs_and_ends(engine, root, gateway, free_ports):
    """The process of its own that a pod runs: its signal handling is what is tested."""
    public, internal = free_ports(2)
    arguments = (sys.executable, "-c", DRIVER, str(root.path), str(public), str(internal))
    process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    gateway.public, gateway.internal = f"http://127.0.0.1:{public}", f"https://127.0.0.1:{internal}"

    async def readiness() -> int:
        try:
            return (await gateway.inside(layout.READYZ_PATH))[0]
        except aiohttp.ClientError:
            return 0

    async def ready() -> bool:
        return await readiness() == 200

    async def unready() -> bool:
        return await readiness() == 503

    try:
        await gateway.until(ready)
        engine.hold = asyncio.Event()
        bearer = {"authorization": "Bearer bw-acme-0123456789abcdef"}
        async with gateway.session.post(gateway.public + CHAT, json=ASK | {"stream": True}, headers=bearer) as stream:
            await stream.content.readany()
            os.kill(process.pid, signal.SIGTERM)
            await gateway.until(unready)
            await asyncio.sleep(0.8)
            assert process.returncode is None
            engine.hold.set()
            assert (await stream.text()).endswith("data: [DONE]\n\n")
        output, _ = await asyncio.wait_for(process.communicate(), 5)
        assert process.returncode == 0
        assert b'"event":"stop"' in output
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
