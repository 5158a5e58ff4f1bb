"""The token that a request is sent with."""

from __future__ import annotations

import dataclasses

import pytest

from blockwarden_core.identity import Scope, Sharing
from blockwarden_core.salt import verify_token
from blockwarden_gateway.errors import SaltUnavailable
from blockwarden_gateway.inflight import InFlight
from blockwarden_gateway.salting import salt_for

ACME = Sharing("acme", Scope.TENANT, ("acme",))


def test_the_engine_learns_tenant_generation_and_salt(material):
    salted = salt_for(ACME, material)
    token = verify_token(salted.token, engine_keys=material.engine_keys.accepted, policy_uid="uid-1")
    assert (token.tenant, token.generation, token.salt) == ("acme", 3, salted.salt)


def test_the_last_secret_of_the_keyring_is_the_one_in_use(material):
    before = material.keyring.model_copy(update={"secrets": material.keyring.secrets[:1]})
    assert salt_for(ACME, material).salt != salt_for(ACME, dataclasses.replace(material, keyring=before)).salt


def test_a_tenant_without_a_generation_gets_no_salt(material):
    with pytest.raises(SaltUnavailable, match="no generation for tenant initech"):
        salt_for(Sharing("initech", Scope.TENANT, ("initech",)), material)


def test_nothing_secret_shows_in_a_repr(material):
    salted = salt_for(ACME, material)
    shown = repr(salted) + repr(material)
    assert salted.salt not in shown
    assert salted.token not in shown
    assert "nnnn" not in shown


def test_requests_are_counted_by_tenant_and_generation_until_they_end(material):
    in_flight, salted = InFlight(), salt_for(ACME, material)
    with in_flight.counted(salted), in_flight.counted(salted):
        assert in_flight.by_tenant == {"acme": {"3": 2}}
    assert in_flight.by_tenant == {}
