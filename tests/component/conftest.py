"""A certificate authority for tests that speak real TLS."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from blockwarden_core import layout


def replace(path: Path, text: str) -> None:
    """Puts another file in a file's place, as a mounted volume does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    following = path.with_suffix(".next")
    following.write_text(text)
    os.replace(following, path)


class Authority:
    """A CA of its own, and leaves for one purpose each."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test CA")])
        builder = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, 0), critical=True)
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        self._certificate = builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())

    def write(self, directory: Path, name: str, purpose: x509.ObjectIdentifier) -> Path:
        """tls.crt, tls.key and ca.crt of a leaf in `directory`, replaced one by one."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        leaf = (
            self._builder(subject, key)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        directory.mkdir(parents=True, exist_ok=True)
        pem, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
        replace(directory / layout.TLS_CERT, leaf.public_bytes(pem).decode())
        replace(directory / layout.TLS_CA, self._certificate.public_bytes(pem).decode())
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, no_password).decode()
        replace(directory / layout.TLS_KEY, private)
        return directory

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )


@pytest.fixture(scope="session")
def authority() -> Authority:
    return Authority()
