"""The models, crds/, the CRD chart and the field reference say the same, and the check that says so can fail."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from blockwarden_operator import crd

ROOT = Path(__file__).parents[2]


def test_the_repository_holds_what_the_models_say() -> None:
    assert crd.stale_files(ROOT) == [], "run `make generate`"


def test_the_check_names_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert crd.main(["--write", "--root", str(tmp_path)]) == 0
    assert crd.main(["--check", "--root", str(tmp_path)]) == 0
    chart = tmp_path / crd.CHART_FILE
    chart.write_text(chart.read_text().replace("maxItems: 100", "maxItems: 101", 1))
    (tmp_path / crd.REFERENCE_FILE).unlink()
    assert crd.main(["--check", "--root", str(tmp_path)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"{path} is not what the API models say: run `make generate`" for path in (crd.CHART_FILE, crd.REFERENCE_FILE)
    ]


def test_without_a_verb_the_crd_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert crd.main([]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == crd.render_crd()


def test_the_chart_holds_the_same_crd() -> None:
    lines = (ROOT / crd.CHART_FILE).read_text().splitlines()
    plain = [line for line in lines if not line.startswith(("  {{-", "  annotations:", "    helm.sh/resource-policy"))]
    assert "\n".join(plain) + "\n" == (ROOT / crd.CRD_FILE).read_text()


def test_the_chart_takes_no_other_values() -> None:
    values = yaml.safe_load((ROOT / "charts/blockwarden-crds/values.yaml").read_text())
    schema = yaml.safe_load((ROOT / "charts/blockwarden-crds/values.schema.json").read_text())
    assert set(values) <= set(schema["properties"])
    assert schema["additionalProperties"] is False
