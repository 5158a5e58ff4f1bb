"""The certificates of one TenantPolicy: a CA of its own whose key is mounted nowhere, and three leaves. Pure: clock and
randomness are arguments, and signatures are deterministic (RFC 6979).

Trust moves before identity: a new CA is first added to every bundle, and only after OVERLAP, when the pods have reloaded, are
leaves issued under it; the old CA leaves the bundles after that. So neither a renewal nor a lost CA closes a connection that
a pod could still have made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from blockwarden_core.layout import TLS_CA, TLS_CERT, TLS_KEY

from .errors import KeyMaterialError
from .render.names import Component, Manifest, Owner
from .salts import Entropy, secret_data

CA_LIFETIME: Final = timedelta(days=3650)
CA_RENEWAL: Final = timedelta(days=365)
"""A CA is succeeded when it has this long to live: far more than a leaf's lifetime."""
LEAF_LIFETIME: Final = timedelta(days=90)
LEAF_RENEWAL: Final = timedelta(days=30)
OVERLAP: Final = timedelta(minutes=10)
"""How long a new CA is only trusted before it issues: several times kubelet's refresh of mounted Secrets."""
FORGET: Final = timedelta(days=1)
"""How long after its succession an old CA stays trusted."""
BACKDATE: Final = timedelta(minutes=5)
"""Tolerance for clocks of nodes that are behind."""

_CURVE: Final = ec.SECP256R1()
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)


@dataclass(frozen=True, slots=True)
class LeafSpec:
    """What a leaf certificate is for."""

    secret: str
    dns_name: str
    usage: x509.ObjectIdentifier


@dataclass(frozen=True, slots=True)
class Pki:
    """The planned contents of the TLS Secrets, by Secret name; which were lost; when to look again."""

    data: Mapping[str, Mapping[str, bytes]] = field(repr=False)
    ca_replaced: bool
    due: datetime


def leaf_specs(owner: Owner) -> tuple[LeafSpec, ...]:
    """The leaves of a policy. Only the gateway's client certificate may open a connection to an engine."""
    gateway, engine = owner.server_name(Component.GATEWAY), owner.server_name(Component.ENGINE)
    return (
        LeafSpec(owner.gateway_client_tls, gateway, ExtendedKeyUsageOID.CLIENT_AUTH),
        LeafSpec(owner.gateway_internal_tls, gateway, ExtendedKeyUsageOID.SERVER_AUTH),
        LeafSpec(owner.engine_tls, engine, ExtendedKeyUsageOID.SERVER_AUTH),
    )


def plan_pki(owner: Owner, secrets: Mapping[str, Manifest], *, now: datetime, entropy: Entropy) -> Pki:
    """What the TLS Secrets should hold, given what they hold; nothing changes while everything is fit and far from expiry.

    Args:
        secrets: the policy's Secrets in the cluster, by name; a missing or damaged one is made anew.
        now: an aware datetime.
    """
    existing = _read_pair(secrets.get(owner.ca))
    known = _known_authorities(owner, secrets)
    fit = existing is not None and existing.certificate.not_valid_after_utc - now > CA_RENEWAL
    ca = existing if existing is not None and fit else _issue_ca(owner, now, entropy)
    former = [certificate for certificate in known if certificate != ca.certificate]
    leaves = {spec: _read_pair(secrets.get(spec.secret)) for spec in leaf_specs(owner)}
    born = ca.certificate.not_valid_before_utc + BACKDATE
    if former and now - born > FORGET and _all_settled(leaves.values(), ca.certificate, now):
        former = []
    bundle = b"".join(_pem(certificate) for certificate in [ca.certificate, *former])
    may_issue = not former or now - born >= OVERLAP
    issuers = [ca.certificate] if may_issue else [ca.certificate, *former]
    data: dict[str, Mapping[str, bytes]] = {owner.ca: {**_pair_data(ca), TLS_CA: bundle}}
    due = ca.certificate.not_valid_after_utc - CA_RENEWAL
    if former:
        due = min(due, born + OVERLAP if not may_issue else max(born + FORGET, now + OVERLAP))
    for spec, leaf in leaves.items():
        stays = leaf is not None and _leaf_is_fit(leaf, spec, issuers, now)
        kept = leaf if leaf is not None and stays else _issue_leaf(spec, ca, now, entropy)
        data[spec.secret] = {**_pair_data(kept), TLS_CA: bundle}
        due = min(due, kept.certificate.not_valid_after_utc - LEAF_RENEWAL)
    return Pki(data, ca_replaced=bool(known) and existing is not ca, due=due)


def _leaf_is_fit(leaf: Pair, spec: LeafSpec, issuers: Iterable[x509.Certificate], now: datetime) -> bool:
    """Whether a leaf can stay: it says what it must, expires far from now and comes from one of `issuers`."""
    certificate = leaf.certificate
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    if names.get_values_for_type(x509.DNSName) != [spec.dns_name] or list(usages) != [spec.usage]:
        return False
    if not certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - LEAF_RENEWAL:
        return False
    return any(_issued_by(certificate, ca) for ca in issuers)


def _all_settled(leaves: Iterable[Pair | None], ca: x509.Certificate, now: datetime) -> bool:
    """Whether every leaf comes from `ca` and has done so for long enough that no pod still shows an older one."""
    return all(
        leaf is not None and _issued_by(leaf.certificate, ca) and now - leaf.certificate.not_valid_before_utc - BACKDATE > OVERLAP
        for leaf in leaves
    )


def _issued_by(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _known_authorities(owner: Owner, secrets: Mapping[str, Manifest]) -> list[x509.Certificate]:
    """Every CA certificate that the mounted bundles trust, without repetition, in a stable order."""
    found: dict[bytes, x509.Certificate] = {}
    for name in (owner.ca, *(spec.secret for spec in leaf_specs(owner))):
        try:
            for certificate in x509.load_pem_x509_certificates(secret_data(secrets.get(name), TLS_CA) or b""):
                found.setdefault(certificate.fingerprint(hashes.SHA256()), certificate)
        except (ValueError, KeyMaterialError):
            continue
    return sorted(found.values(), key=lambda certificate: certificate.not_valid_before_utc, reverse=True)


def _read_pair(manifest: Manifest | None) -> Pair | None:
    """The certificate and key in a TLS Secret; None where they are missing, damaged or do not belong together."""
    try:
        certificate_pem, key_pem = secret_data(manifest, TLS_CERT), secret_data(manifest, TLS_KEY)
        if certificate_pem is None or key_pem is None:
            return None
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        key = serialization.load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm, KeyMaterialError):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
        return None
    return Pair(certificate, key)


def _issue_ca(owner: Owner, now: datetime, entropy: Entropy) -> Pair:
    key = _new_key(entropy)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"blockwarden {owner.uid}")])
    builder = (
        _builder(name, name, key, now, CA_LIFETIME, entropy)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
    )
    return Pair(builder.sign(key, hashes.SHA256(), ecdsa_deterministic=True), key)


def _issue_leaf(spec: LeafSpec, ca: Pair, now: datetime, entropy: Entropy) -> Pair:
    key = _new_key(entropy)
    # The subject is a constant: names of policies may exceed the 64 characters of a common name, and only the SAN is read.
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "blockwarden")])
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key())
    builder = (
        _builder(subject, ca.certificate.subject, key, now, LEAF_LIFETIME, entropy)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([spec.usage]), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(spec.dns_name)]), critical=False)
        .add_extension(authority, critical=False)
    )
    return Pair(builder.sign(ca.key, hashes.SHA256(), ecdsa_deterministic=True), key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
    lifetime: timedelta,
    entropy: Entropy,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number((int.from_bytes(entropy(20), "big") >> 1) | 1)
        .not_valid_before(now.replace(microsecond=0) - BACKDATE)
        .not_valid_after(now.replace(microsecond=0) + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _new_key(entropy: Entropy) -> ec.EllipticCurvePrivateKey:
    """A P-256 key from 384 random bits: reduced modulo the order, the bias is below 2⁻¹²⁸."""
    return ec.derive_private_key(int.from_bytes(entropy(48), "big") % (_ORDER - 1) + 1, _CURVE)


def _pair_data(pair: Pair) -> dict[str, bytes]:
    key = pair.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return {TLS_CERT: _pem(pair.certificate), TLS_KEY: key}


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
