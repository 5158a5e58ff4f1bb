"""Who may run a request, and how long its answer may get, as this process sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockwarden_core import layout
from blockwarden_core.errors import ForgedToken, MissingToken, RetiredToken, UnknownTenant
from blockwarden_core.keys import EngineKey, EngineKeys
from blockwarden_core.policy import EnginePolicy, TenantShare, seal_policy
from blockwarden_core.salt import sign_token
from blockwarden_engine.admission import Admission, CacheShape, length_is_free
from blockwarden_engine.errors import NeverFits

KEYS = EngineKeys(active="k", keys=(EngineKey.model_validate({"id": "k", "key": b"k" * 32}),))
SALT = "s" * 43
SHAPE = CacheShape(block_size=32, pool=100, max_model_len=4096)


@pytest.fixture
def admission(tmp_path: Path) -> Admission:
    shares = (
        TenantShare(name="acme", guaranteed=10, limit=10, generation=3, floor=2),
        TenantShare(name="other", guaranteed=50, limit=50, generation=1, floor=1),
    )
    policy = EnginePolicy(policy_uid="uid", version=1, tenants=shares)
    for relative, text in ((layout.ENGINE_KEYS, KEYS.text()), (layout.ENGINE_POLICY, seal_policy(policy, KEYS))):
        (tmp_path / relative).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / relative).write_text(text)
    made = Admission(tmp_path, "uid")
    made.shape = SHAPE
    return made


def token(tenant: str, generation: int = 3, key: bytes = b"k" * 32) -> str:
    return sign_token(key, policy_uid="uid", tenant=tenant, generation=generation, salt=SALT)


def test_a_signed_token_of_a_served_tenant_is_admitted(admission: Admission) -> None:
    verified, share = admission.admit(token("acme", 2))
    assert (verified.tenant, verified.generation, share.name) == ("acme", 2, "acme")


@pytest.mark.parametrize(
    ("salt", "error"),
    [
        (None, MissingToken), ("", MissingToken), (token("acme", key=b"x" * 32), ForgedToken), (token("acme", 1), RetiredToken),
        (token("nobody"), UnknownTenant),
    ],
)  # fmt: skip
def test_everything_else_is_refused(admission: Admission, salt: str | None, error: type[Exception]) -> None:
    with pytest.raises(error):
        admission.admit(salt)


def test_an_answer_that_fits_keeps_its_length(admission: Admission) -> None:
    _, share = admission.admit(token("acme"))
    assert admission.longest_answer(share, 300, 20) == 20


def test_a_length_that_the_client_insists_on_is_refused_with_the_numbers(admission: Admission) -> None:
    _, share = admission.admit(token("acme"))
    with pytest.raises(NeverFits, match=r"may need 13 KV blocks of 32 tokens and its tenant can hold 10"):
        admission.longest_answer(share, 300, 100)


def test_a_length_that_the_client_left_open_is_cut_to_what_fits(admission: Admission) -> None:
    _, share = admission.admit(token("acme"))
    previous = length_is_free.set(True)
    try:
        assert admission.longest_answer(share, 300, 3796) == 20
        with pytest.raises(NeverFits):
            admission.longest_answer(share, 320, 10)
    finally:
        length_is_free.reset(previous)


def test_nothing_is_bounded_before_the_cache_is_known(admission: Admission) -> None:
    _, share = admission.admit(token("acme"))
    admission.shape = None
    assert admission.longest_answer(share, 300, 9999) == 9999
