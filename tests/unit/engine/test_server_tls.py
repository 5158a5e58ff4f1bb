"""Server certificates that change while connections come and go: over real TLS handshakes in memory."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from blockwarden_engine.errors import LaunchRefused
from blockwarden_engine.tls import MountedTls

PEM = serialization.Encoding.PEM


class Issuer:
    """A self-signed CA and the leaves that it signs."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")])
        self.certificate = self._sign(self._key, x509.BasicConstraints(ca=True, path_length=0), self.name)

    def issue(self, directory: Path) -> Path:
        """Writes a leaf for the name engine.test."""
        directory.mkdir(exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName("engine.test")])
        leaf = self._sign(key, names, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "leaf")]))
        private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (directory / "tls.crt").write_bytes(leaf.public_bytes(PEM))
        (directory / "tls.key").write_bytes(private)
        (directory / "ca.crt").write_bytes(self.certificate.public_bytes(PEM))
        return directory

    def _sign(self, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType, subject: x509.Name) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(key.public_key())
            .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(minutes=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
            .sign(self._key, hashes.SHA256())
        )  # fmt: skip


def handshake(server: MountedTls, trust: Path, client: Path | None) -> int:
    """The serial number of the certificate that the server shows; raises ssl.SSLError when either side refuses."""
    context = ssl.create_default_context(cafile=str(trust))
    if client is not None:
        context.load_cert_chain(client / "tls.crt", client / "tls.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = context.wrap_bio(to_client, to_server, server_hostname="engine.test")
    far = server.context.wrap_bio(to_server, to_client, server_side=True)
    done: set[ssl.SSLObject] = set()
    for _ in range(8):
        for side in (near, far):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                continue
    assert len(done) == 2
    shown = near.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def serial(directory: Path) -> int:
    return x509.load_pem_x509_certificate((directory / "tls.crt").read_bytes()).serial_number


def test_a_renewed_certificate_is_shown_to_new_connections(tmp_path: Path) -> None:
    issuer = Issuer()
    mounted, client = issuer.issue(tmp_path / "server"), issuer.issue(tmp_path / "client")
    server, first = MountedTls(mounted, require_client=True), serial(mounted)
    assert handshake(server, mounted / "ca.crt", client) == first
    issuer.issue(mounted)
    assert server.poll()
    assert handshake(server, mounted / "ca.crt", client) == serial(mounted) != first
    assert not server.poll()


def test_a_replaced_authority_is_not_trusted_any_more(tmp_path: Path) -> None:
    old, new = Issuer(), Issuer()
    mounted, old_client, new_client = old.issue(tmp_path / "s"), old.issue(tmp_path / "o"), new.issue(tmp_path / "n")
    server = MountedTls(mounted, require_client=True)
    new.issue(mounted)
    assert server.poll()
    handshake(server, mounted / "ca.crt", new_client)
    with pytest.raises(ssl.SSLError):
        handshake(server, mounted / "ca.crt", old_client)


def test_a_client_without_a_certificate_is_refused_only_where_one_is_required(tmp_path: Path) -> None:
    mounted = Issuer().issue(tmp_path / "server")
    handshake(MountedTls(mounted, require_client=False), mounted / "ca.crt", None)
    with pytest.raises(ssl.SSLError):
        handshake(MountedTls(mounted, require_client=True), mounted / "ca.crt", None)


def test_a_half_written_renewal_leaves_the_last_good_one(tmp_path: Path) -> None:
    issuer = Issuer()
    mounted = issuer.issue(tmp_path / "server")
    server, first = MountedTls(mounted, require_client=False), serial(mounted)
    trust = tmp_path / "trust"
    trust.write_bytes((mounted / "ca.crt").read_bytes())
    (mounted / "tls.crt").write_text("half")
    assert not server.poll()
    assert server.error is not None
    assert handshake(server, trust, None) == first
    issuer.issue(mounted)
    assert server.poll()
    assert server.error is None


def test_an_engine_without_certificates_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(LaunchRefused):
        MountedTls(tmp_path, require_client=True)
