"""Rules, configuration and dashboard as files: valid, complete, and linked to each other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.observability.dashboards import OURS, panels, queries_of
from tests.observability.prometheus import GRAFANA, promtool

HERE = Path(__file__).parent
UNIT_TESTS = sorted((HERE / "rules").glob("*.test.yml"))


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((GRAFANA / "rules" / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_the_configuration_is_valid() -> None:
    result = promtool("check", "config", GRAFANA / "prometheus.yml")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("path", UNIT_TESTS, ids=lambda path: path.name)
def test_alerts_fire_and_clear(path: Path) -> None:
    result = promtool("test", "rules", path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_is_tested_in_both_directions() -> None:
    seen: dict[str, set[bool]] = {}
    for path in UNIT_TESTS:
        for test in yaml.safe_load(path.read_text())["tests"]:
            for case in test["alert_rule_test"]:
                seen.setdefault(case["alertname"], set()).add(bool(case.get("exp_alerts")))
    assert seen == {alert["alert"]: {True, False} for alert in alerts()}


def test_every_alert_leads_to_its_heading_in_the_runbook() -> None:
    readme = (GRAFANA.parent / "README.md").read_text()
    headings = re.findall(r"^#### (Runbook: .+)$", readme, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    linked = {tuple(alert["annotations"]["runbook_url"].split("#")) for alert in alerts()}
    assert linked == {("README.md", anchor) for anchor in anchors}
    inner = set(re.findall(r"\(#(runbook-[\w-]+)\)", readme))
    assert inner <= anchors


def test_every_alert_has_a_severity_and_a_summary() -> None:
    for alert in alerts():
        assert alert["labels"]["severity"] in ("page", "ticket"), alert["alert"]
        assert "{{" in alert["annotations"]["summary"]


def test_the_dashboard_is_tidy() -> None:
    shown = list(panels())
    assert len({panel["id"] for panel in OURS["panels"]}) == len(OURS["panels"])
    assert len({panel["title"] for panel in shown}) == len(shown)
    for panel in shown:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    assert [variable["name"] for variable in OURS["templating"]["list"]] == ["datasource", "model", "instance"]


def test_no_panel_covers_another() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in OURS["panels"]:
        at = panel["gridPos"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in taken, (panel["title"], taken[x, y])
                taken[x, y] = panel["title"]


def test_all_panels_follow_the_variables() -> None:
    for panel in panels():
        for query in queries_of(panel):
            assert "$instance" in query, panel["title"]


def test_provisioning_fits_together() -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/breadbox.yml").read_text())["providers"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    assert provider["options"]["path"]
    assert json.loads((GRAFANA / "dashboards/breadbox.json").read_text())["uid"] == "breadbox"
