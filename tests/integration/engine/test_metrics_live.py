"""What a running engine shows of itself: every metric of the page, no name that a client could choose, nothing secret."""

from __future__ import annotations

import re
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from blockwarden_core import layout
from blockwarden_engine.metrics import FAMILIES

PROMPT = "A prompt that nobody else may ever see, however they look at this engine. " * 12


def scrape(engine: Any) -> dict[str, Any]:
    page = engine.internal(layout.METRICS_PATH).body.decode()
    return {family.name: family for family in text_string_to_metric_families(page)}


def value(families: dict[str, Any], name: str, sample: str, **labels: str) -> float:
    return sum(found.value for found in families[name].samples if found.name == sample and found.labels == labels)


def test_scrubs_show_in_numbers_that_agree(engine: Any) -> None:
    before = engine.report().scrub
    for user in range(12):  # more than a's limit holds, so that blocks change their owner
        assert engine.complete(engine.deployment.token("a", user=f"m{user}"), PROMPT).status == 200
    engine.wait_for(lambda report: not report.scrub.backlog)
    families, scrub = scrape(engine), engine.attestation().scrub
    assert {family.name for family in FAMILIES} <= families.keys()
    assert scrub.epochs_confirmed == scrub.epochs_ordered > before.epochs_ordered
    assert scrub.blocks > before.blocks
    assert scrub.bytes == scrub.blocks * engine.core("result = scheduler._block_bytes") > 0
    samples = {sample.name: sample.value for sample in families["blockwarden_free_to_clean_steps"].samples}
    assert samples["blockwarden_free_to_clean_steps_count"] == value(
        families, "blockwarden_scrubbed_blocks", "blockwarden_scrubbed_blocks_total", kind="between_owners"
    )
    steps = engine.report().free_to_clean_steps
    assert steps.counts[0] + steps.counts[1] > 0.9 * sum(steps.counts), "with two steps in flight a scrub takes one or two"
    assert engine.report().free_to_clean_seconds.total > 0


def test_refusals_count_by_reason_and_by_no_name_that_was_not_verified(engine: Any) -> None:
    def refused(reason: str, tenant: str = "") -> float:
        name = "blockwarden_admission_refusals"
        return value(scrape(engine), name, f"{name}_total", tenant=tenant, reason=reason)

    before = {reason: refused(reason) for reason in ("salt_missing", "salt_forged", "tenant_unknown")}
    large = refused("request_too_large", "canary")
    engine.complete(None, "hi")
    engine.complete(engine.deployment.token("a", key=b"x" * 32), "hi")
    engine.complete(engine.deployment.token("mallory"), "hi")
    engine.complete(engine.deployment.token("canary", generation=2), "hi", max_tokens=500)
    assert {reason: refused(reason) - 1 for reason in before} == before
    assert refused("request_too_large", "canary") == large + 1
    tenants = {sample.labels.get("tenant", "") for family in scrape(engine).values() for sample in family.samples}
    assert tenants <= {"", "a", "b", "c", "canary"}


def test_nothing_secret_is_in_labels_values_or_reports(engine: Any) -> None:
    token = engine.deployment.token("a", user="zoe-mailbox")
    assert engine.complete(token, PROMPT).status == 200
    text = engine.internal(layout.METRICS_PATH).body.decode() + engine.internal(layout.STATUS_PATH).body.decode()
    for secret in (token, token.split(".")[3], token.split(".")[4], "zoe", "nobody else may ever", "mallory"):
        assert secret not in text
    assert not re.search(r"[A-Za-z0-9_-]{43}", engine.internal(layout.METRICS_PATH).body.decode().replace("blockwarden_", ""))
