"""The apiserver's rules and the operator's functions say the same, over generated specs.

One list in core is read twice: as one RE2 pattern inside CEL, and by Python. Where the two readings differed, a spec would be
refused late or, worse, taken by the side that is wrong.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from blockwarden_core import engine_args, unsafe
from blockwarden_core.identity import Scope
from blockwarden_operator.api import TenantPolicySpec
from blockwarden_operator.checks import CheckInput, check_spec

pytestmark = pytest.mark.integration
Manifest = dict[str, Any]
OPTIONS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])

JUNK = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)
FLAGS = st.sampled_from([*engine_args.EXTRA_ARGS, *unsafe.FLAGS, *engine_args.FIELD_ARGS]) | JUNK
VALUES = (
    st.sampled_from(["", "1", "0.5", "auto", "fp8", "2k", "-1", "safetensors", "VERSION", "PASSIVE", "eth0", "nobind", "UTC"])
    | JUNK
)
SPELLINGS = st.sampled_from(["--{0}={1}", "--{0}", "-{0}={1}", "--{0} {1}", "--{0}={1}\n", " --{0}={1}", "--{0}.a={1}", "{0}"])
ARGUMENTS = st.builds(lambda spelling, flag, value: spelling.format(flag, value), SPELLINGS, FLAGS, VALUES)
PLAIN = st.builds(
    lambda flag, value: f"--{flag}" + (f"={value}" if value else ""), st.sampled_from([*engine_args.EXTRA_ARGS]), VALUES
)


def policy(**parts: Any) -> Manifest:
    spec = {
        "model": {"name": "m", "source": {"path": "/models/m"}},
        "tenants": [{"name": "acme", "kvCache": {"guaranteed": "50%"}}],
        **parts,
    }
    return {"apiVersion": "blockwarden.dev/v1alpha1", "kind": "TenantPolicy", "metadata": {"name": "generated"}, "spec": spec}


def taken(server: Any, refused: Any, manifest: Manifest) -> bool:
    try:
        server.create(manifest, dry_run=True)
    except refused:
        return False
    return True


@given(items=st.lists(ARGUMENTS | PLAIN, max_size=4))
@OPTIONS
def test_both_take_the_same_engine_arguments(server: Any, refused: Any, items: list[str]) -> None:
    assume(all(len(item) >= 3 and len(item.encode()) <= 256 for item in items))
    assert taken(server, refused, policy(engine={"extraArgs": items})) is (engine_args.refusal(items) is None)


@given(name=st.sampled_from([*engine_args.EXTRA_ENV, "VLLM_PLUGINS", "PATH"]), value=VALUES | st.just("INFO") | st.just("1\n"))
@OPTIONS
def test_both_take_the_same_environment(server: Any, refused: Any, name: str, value: str) -> None:
    engine = {"env": [{"name": name, "value": value}]}
    assert taken(server, refused, policy(engine=engine)) is (engine_args.env_refusal({name: value}) is None)


AMOUNTS = st.integers(0, 60) | st.integers(0, 100).map("{}%".format)
KEYS = st.lists(st.sampled_from(["ann", None]), max_size=2)


@st.composite
def tenants(draw: st.DrawFn) -> list[Manifest]:
    listed = []
    for name in draw(st.lists(st.sampled_from(["a", "b", "c", "canary"]), min_size=1, max_size=3, unique=True)):
        amount = draw(AMOUNTS)
        bound = draw(st.integers(0, 100))
        limit = f"{bound}%" if isinstance(amount, str) else bound
        keys = [
            {"name": f"k{number}", "secretRef": {"name": "s", "key": "k"}} | ({"user": user} if user else {})
            for number, user in enumerate(draw(KEYS))
        ]
        scope = draw(st.sampled_from([None, *Scope]))
        tenant = {"name": name, "apiKeys": keys, "kvCache": {"guaranteed": amount, "limit": limit}}
        listed.append(tenant | ({"scope": scope.value} if scope else {}))
    return listed


@given(listed=tenants(), scope=st.sampled_from(list(Scope)))
@OPTIONS
def test_what_the_apiserver_takes_the_operators_chain_takes(
    server: Any, refused: Any, listed: list[Manifest], scope: Scope
) -> None:
    """And what only the chain refuses is nothing of the spec's own: the pool's size is not given here."""
    manifest = policy(tenants=listed, isolation={"scope": scope.value})
    if taken(server, refused, manifest):
        assert check_spec(CheckInput(TenantPolicySpec.model_validate(manifest["spec"]))) is None


@given(listed=tenants(), scope=st.sampled_from(list(Scope)))
@OPTIONS
def test_what_the_chain_refuses_the_apiserver_refuses(server: Any, refused: Any, listed: list[Manifest], scope: Scope) -> None:
    manifest = policy(tenants=listed, isolation={"scope": scope.value})
    assume(check_spec(CheckInput(TenantPolicySpec.model_validate(manifest["spec"]))) is not None)
    assert not taken(server, refused, manifest)


def test_the_comparison_can_fail(lax: Any, refused: Any) -> None:
    """The broken twin: without the rules the apiserver takes what the function refuses."""
    items = ["--enable-log-requests"]
    manifest = {**policy(engine={"extraArgs": items}), "apiVersion": f"{lax.group}/v1alpha1"}
    assert taken(lax, refused, manifest)
    assert engine_args.refusal(items) is not None
