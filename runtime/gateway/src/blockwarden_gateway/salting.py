"""The salt token of one request. Pure; the secret never leaves this function but as a MAC."""

from __future__ import annotations

from dataclasses import dataclass, field

from blockwarden_core.identity import Sharing
from blockwarden_core.salt import derive_salt, sign_token

from .errors import SaltUnavailable
from .material import Material


@dataclass(frozen=True, slots=True)
class Salted:
    """What a request is sent with: the token, and the tenant and generation in it (whose quota pays, which rotation it is of)."""

    tenant: str
    generation: int
    salt: str = field(repr=False)
    token: str = field(repr=False)


def salt_for(sharing: Sharing, material: Material) -> Salted:
    """The token for a trust domain under the keyring in force.

    Raises:
        SaltUnavailable: the keyring has no generation for the tenant.
    """
    generation = material.keyring.generations.get(sharing.tenant)
    if generation is None:
        raise SaltUnavailable(f"the salt keyring has no generation for tenant {sharing.tenant}")
    uid = material.policy.policy_uid
    secret = material.keyring.current.secret.get_secret_value()
    salt = derive_salt(secret, deployment=uid, generation=generation, sharing=sharing)
    token = sign_token(material.engine_keys.signing_key, policy_uid=uid, tenant=sharing.tenant, generation=generation, salt=salt)
    return Salted(sharing.tenant, generation, salt, token)
