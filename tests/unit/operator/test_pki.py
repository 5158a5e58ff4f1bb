"""Certificates: what is in them, when they are renewed, and that trust always moves before identity."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import ExtendedKeyUsageOID

from blockwarden_operator.pki import CA_LIFETIME, CA_RENEWAL, FORGET, LEAF_LIFETIME, LEAF_RENEWAL, OVERLAP, Pki, plan_pki
from blockwarden_operator.render.names import Manifest, Owner

Entropy = Callable[[int], bytes]


def stored(pki: Pki) -> dict[str, Manifest]:
    return {
        name: {"data": {key: base64.b64encode(value).decode() for key, value in data.items()}} for name, data in pki.data.items()
    }


def certificate(data: Mapping[str, bytes]) -> x509.Certificate:
    return x509.load_pem_x509_certificate(data["tls.crt"])


def bundle(data: Mapping[str, bytes]) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(data["ca.crt"])


def issued_by(data: Mapping[str, bytes], ca: x509.Certificate) -> bool:
    try:
        certificate(data).verify_directly_issued_by(ca)
    except (ValueError, InvalidSignature):
        return False
    return True


def test_a_second_plan_changes_nothing_and_draws_nothing(owner: Owner, now: datetime, entropy: Entropy) -> None:
    first = plan_pki(owner, {}, now=now, entropy=entropy)
    again = plan_pki(owner, stored(first), now=now + timedelta(days=1), entropy=lambda _: pytest.fail("drew randomness"))
    assert again.data == first.data
    assert not first.ca_replaced
    assert not again.ca_replaced


def test_only_the_gateways_client_certificate_is_for_clients(owner: Owner, now: datetime, entropy: Entropy) -> None:
    data = plan_pki(owner, {}, now=now, entropy=entropy).data
    usages = {
        name: list(certificate(data[name]).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        for name in (owner.gateway_client_tls, owner.gateway_internal_tls, owner.engine_tls)
    }
    assert usages == {
        owner.gateway_client_tls: [ExtendedKeyUsageOID.CLIENT_AUTH],
        owner.gateway_internal_tls: [ExtendedKeyUsageOID.SERVER_AUTH],
        owner.engine_tls: [ExtendedKeyUsageOID.SERVER_AUTH],
    }


def test_names_are_those_of_the_protocol(owner: Owner, now: datetime, entropy: Entropy) -> None:
    data = plan_pki(owner, {}, now=now, entropy=entropy).data
    names = certificate(data[owner.engine_tls]).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["shared-llama-engine.inference.svc"]
    assert certificate(data[owner.engine_tls]).extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False


def test_no_leaf_secret_holds_the_key_of_the_ca(owner: Owner, now: datetime, entropy: Entropy) -> None:
    data = plan_pki(owner, {}, now=now, entropy=entropy).data
    ca_key = data[owner.ca]["tls.key"]
    assert all(ca_key not in b"".join(fields.values()) for name, fields in data.items() if name != owner.ca)
    assert len({fields["tls.key"] for fields in data.values()}) == 4


def test_a_leaf_is_renewed_well_before_it_expires(owner: Owner, now: datetime, entropy: Entropy) -> None:
    first = plan_pki(owner, {}, now=now, entropy=entropy)
    assert first.due == now + LEAF_LIFETIME - LEAF_RENEWAL
    before = plan_pki(owner, stored(first), now=first.due - timedelta(seconds=1), entropy=entropy)
    assert before.data == first.data
    after = plan_pki(owner, stored(first), now=first.due, entropy=entropy)
    assert certificate(after.data[owner.engine_tls]).not_valid_after_utc == first.due + LEAF_LIFETIME
    assert after.data[owner.ca] == first.data[owner.ca]
    assert not after.ca_replaced


@pytest.mark.parametrize("loss", ["missing", "not a certificate", "foreign key"])
def test_a_damaged_leaf_is_made_anew(owner: Owner, now: datetime, entropy: Entropy, loss: str) -> None:
    first = plan_pki(owner, {}, now=now, entropy=entropy)
    secrets = stored(first)
    if loss == "missing":
        del secrets[owner.engine_tls]
    elif loss == "not a certificate":
        secrets[owner.engine_tls]["data"]["tls.crt"] = base64.b64encode(b"nonsense").decode()
    else:
        secrets[owner.engine_tls]["data"]["tls.key"] = secrets[owner.gateway_client_tls]["data"]["tls.key"]
    again = plan_pki(owner, secrets, now=now, entropy=entropy)
    assert again.data[owner.engine_tls] != first.data[owner.engine_tls]
    assert issued_by(again.data[owner.engine_tls], certificate(first.data[owner.ca]))
    assert again.data[owner.gateway_client_tls] == first.data[owner.gateway_client_tls]


def test_a_certificate_with_the_wrong_use_is_replaced(owner: Owner, now: datetime, entropy: Entropy) -> None:
    first = plan_pki(owner, {}, now=now, entropy=entropy)
    secrets = stored(first)
    secrets[owner.engine_tls] = secrets[owner.gateway_client_tls]
    again = plan_pki(owner, secrets, now=now, entropy=entropy)
    usage = certificate(again.data[owner.engine_tls]).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]


def test_a_lost_ca_is_trusted_before_it_issues_and_forgotten_after(owner: Owner, now: datetime, entropy: Entropy) -> None:
    first = plan_pki(owner, {}, now=now, entropy=entropy)
    old = certificate(first.data[owner.ca])
    secrets = stored(first)
    del secrets[owner.ca]
    lost = plan_pki(owner, secrets, now=now, entropy=entropy)
    new = certificate(lost.data[owner.ca])
    assert lost.ca_replaced
    assert new != old
    assert bundle(lost.data[owner.engine_tls]) == [new, old]
    assert issued_by(lost.data[owner.engine_tls], old)
    assert lost.due == now + OVERLAP

    moved = plan_pki(owner, stored(lost), now=now + OVERLAP, entropy=entropy)
    assert not moved.ca_replaced
    assert all(issued_by(moved.data[name], new) for name in moved.data if name != owner.ca)
    assert bundle(moved.data[owner.gateway_client_tls]) == [new, old]

    forgotten = plan_pki(owner, stored(moved), now=now + OVERLAP + FORGET + timedelta(seconds=1), entropy=entropy)
    assert bundle(forgotten.data[owner.engine_tls]) == [new]
    assert certificate(forgotten.data[owner.engine_tls]) == certificate(moved.data[owner.engine_tls])


def test_an_operator_that_slept_through_it_all_still_moves_trust_last(owner: Owner, now: datetime, entropy: Entropy) -> None:
    first = plan_pki(owner, {}, now=now, entropy=entropy)
    secrets = stored(first)
    del secrets[owner.ca]
    lost = plan_pki(owner, secrets, now=now, entropy=entropy)
    late = plan_pki(owner, stored(lost), now=now + FORGET * 3, entropy=entropy)
    assert issued_by(late.data[owner.engine_tls], certificate(lost.data[owner.ca]))
    assert certificate(first.data[owner.ca]) in bundle(late.data[owner.engine_tls])


def test_a_ca_is_succeeded_a_year_before_it_ends(owner: Owner, now: datetime, entropy: Entropy) -> None:
    first = plan_pki(owner, {}, now=now, entropy=entropy)
    then = now + CA_LIFETIME - CA_RENEWAL
    renewed = plan_pki(owner, stored(first), now=then, entropy=entropy)
    assert renewed.ca_replaced
    assert certificate(renewed.data[owner.ca]).not_valid_after_utc == then + CA_LIFETIME


def test_real_tls_accepts_what_was_made(owner: Owner, now: datetime, entropy: Entropy, tmp_path: Path) -> None:
    data = plan_pki(owner, {}, now=datetime.now(tz=now.tzinfo), entropy=entropy).data
    for name, fields in data.items():
        for file, content in fields.items():
            (tmp_path / f"{name}-{file}").write_bytes(content)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / f"{owner.engine_tls}-tls.crt", tmp_path / f"{owner.engine_tls}-tls.key")
    server.load_verify_locations(cadata=data[owner.engine_tls]["ca.crt"].decode())
    server.verify_mode = ssl.CERT_REQUIRED
    assert handshake(server, client(tmp_path, owner.gateway_client_tls, data), "shared-llama-engine.inference.svc") is None
    refused = handshake(server, client(tmp_path, owner.gateway_internal_tls, data), "shared-llama-engine.inference.svc")
    assert isinstance(refused, ssl.SSLError)
    misnamed = handshake(server, client(tmp_path, owner.gateway_client_tls, data), "other-engine.inference.svc")
    assert isinstance(misnamed, ssl.SSLCertVerificationError)


def client(folder: Path, name: str, data: Mapping[str, Mapping[str, bytes]]) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=data[name]["ca.crt"].decode())
    context.load_cert_chain(folder / f"{name}-tls.crt", folder / f"{name}-tls.key")
    return context


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, server_name: str) -> ssl.SSLError | None:
    """A handshake in memory; the error of whichever side refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=server_name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    done = [False, False]
    for _ in range(10):
        for index, side in enumerate(sides):
            try:
                if not done[index]:
                    side.do_handshake()
                    done[index] = True
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                return error
    return None if all(done) else ssl.SSLError("the handshake did not end")
