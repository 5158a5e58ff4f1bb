"""docs/metrics.md and the engine's metrics are one list, and what is scraped follows Prometheus' rules for names."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from blockwarden_core.report import Distribution, EngineReport, PoolBlocks, RefusalCount, TenantBlocks, TenantState
from blockwarden_engine.metrics import FAMILIES, VLLM_METRICS, render_metrics

PAGE = (Path(__file__).resolve().parents[2] / "docs/metrics.md").read_text()
ROW = re.compile(r"^\| `([a-z0-9_:]+)` \| (gauge|counter|histogram) \|(.*)$", re.M)


def report() -> EngineReport:
    """A report in which every metric has at least one sample."""
    counters = {"preemptions": 2, "passed_over.blocks": 3, "passed_over.share": 4, "ended.guard": 1, "waits_for_scrub": 5}
    acme = TenantBlocks(
        name="acme", generation=3, floor=2, guaranteed_blocks=4, limit_blocks=6, owned_blocks=5, running=1, waiting=2,
        stale_blocks=1, stale_requests=1, cached_blocks=2, counters=counters, state=TenantState.DRAINING,
    )  # fmt: skip
    return EngineReport(
        pod_uid="p", boot_nonce="n", policy_version=7, tenants=(acme,), counters={"ended.salt_forged": 2, "guard_violations": 1},
        pool=PoolBlocks(total=12, clean=3, owned=5, dirty=3, scrubbing=1, cached=2), reload_error="a sentence",
        reload_errors={"StaleDocument": 1}, refusals=(RefusalCount(tenant="", reason="salt_missing", count=9),),
        free_to_clean_steps=Distribution(bounds=(1, 2), counts=(5, 2, 1), total=13),
        free_to_clean_seconds=Distribution(bounds=(0.5,), counts=(3, 4), total=3.5),
    )  # fmt: skip


def rows(prefix: str) -> dict[str, tuple[str, str]]:
    return {name: (kind, rest) for name, kind, rest in ROW.findall(PAGE) if name.startswith(prefix)}


def test_page_and_code_have_the_same_metrics_types_and_labels() -> None:
    ours = rows("blockwarden_").items()
    written = {name: (kind, set(re.findall(r"`(\w+)`", rest.split("|")[0]))) for name, (kind, rest) in ours}
    assert written == {family.exposed: (family.kind, set(family.labels)) for family in FAMILIES}


def test_page_and_code_list_the_same_metrics_of_vllm() -> None:
    assert {name.removesuffix("_total") for name in rows("vllm:")} == VLLM_METRICS


def test_the_difference_is_seen() -> None:
    """The broken twin: a page that lacks one line, or has one too many."""
    lines = [line for line in PAGE.splitlines() if "`blockwarden_pool_blocks`" not in line]
    assert len(ROW.findall("\n".join(lines))) == len(ROW.findall(PAGE)) - 1
    assert "`" in ROW.findall("| `blockwarden_new` | gauge | `tenant` | x | y |")[0][2]


def test_every_metric_says_what_to_do_or_cannot_move_alone() -> None:
    for name, (_, rest) in rows("blockwarden_").items():
        labels, says, moves = rest.split(" | ", 2)
        assert says, (name, labels)
        assert moves.strip(" |") or name == "blockwarden_tenant_cached_blocks"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_names_follow_the_convention(family: object) -> None:
    assert re.fullmatch(r"blockwarden_[a-z]+(_[a-z]+)*", family.name)
    assert not family.name.endswith("_total"), "the client adds it"
    assert family.kind != "histogram" or family.name.endswith(("_seconds", "_steps"))
    assert {*family.labels} <= {"tenant", "state", "stage", "kind", "check", "reason"}


def test_what_is_scraped_parses_and_has_every_metric() -> None:
    families = {family.name: family for family in text_string_to_metric_families(render_metrics(report(), ()).decode())}
    assert set(families) == {family.name for family in FAMILIES}
    assert all(family.samples for family in families.values())
    values = {(s.name, *sorted(s.labels.items())): s.value for family in families.values() for s in family.samples}
    assert values["blockwarden_pool_blocks", ("state", "in_use")] == 3
    assert values["blockwarden_requests_ended_total", ("reason", "guard"), ("tenant", "acme")] == 1
    assert values["blockwarden_requests_ended_total", ("reason", "salt_forged"), ("tenant", "")] == 2
    assert values["blockwarden_tenant_state", ("state", "draining"), ("tenant", "acme")] == 1
    assert values["blockwarden_free_to_clean_steps_bucket", ("le", "2.0")] == 7
    assert values["blockwarden_free_to_clean_steps_bucket", ("le", "+Inf")] == 8
    assert values[("blockwarden_free_to_clean_steps_count",)] == 8
    assert values[("blockwarden_free_to_clean_seconds_sum",)] == 3.5
