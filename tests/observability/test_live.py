"""A real Prometheus over a real box under a small load: every panel, variable and rule has something to show."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.box.running_box import RunningBox
from tests.observability.dashboards import OURS, UPSTREAM, UPSTREAM_OLD, filled, panels, queries_of
from tests.observability.load import MODEL, complete, in_background
from tests.observability.prometheus import GRAFANA, Prometheus

K8S = GRAFANA.parent / "k8s"
LOAD_S = 60  # until all must be there


def chat(box: RunningBox) -> None:
    request = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6}
    httpx.post(f"{box.url}/v1/chat/completions", json=request, timeout=60)


def do_wrong(box: RunningBox) -> None:
    """A request that is refused, and one whose client leaves."""
    complete(box, temperature=9)
    try:
        complete(box, max_tokens=200, timeout=0.3)
    except httpx.TimeoutException:
        time.sleep(0.5)


def repeat(drafting: RunningBox) -> None:
    """What comes is what was: something to draft."""
    complete(drafting, prompt=[5, 6, 7, 8] * 8, max_tokens=32)
    time.sleep(0.2)


@pytest.fixture(scope="module")
def watched(box: RunningBox, drafting: RunningBox, prometheus: Prometheus) -> Iterator[Prometheus]:
    """While a small load goes on."""
    jobs = [lambda: complete(box, max_tokens=16), lambda: chat(box), lambda: do_wrong(box), lambda: repeat(drafting)]
    with in_background(*jobs):
        yield prometheus


def variables(watched: Prometheus) -> dict[str, str]:
    """Each of the dashboard's variables with all its values, as Grafana joins them."""
    values: dict[str, str] = {}
    for variable in OURS["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", filled(variable["definition"], **values))
            assert match
            offered = watched.label_values(match[2], match[1])
            assert offered, variable["name"]
            values[variable["name"]] = "|".join(re.escape(value).replace("\\-", "-") for value in offered)
    return {name: value.replace("\\", "\\\\") for name, value in values.items()}


def find_empty(watched: Prometheus, queries: dict[str, str]) -> dict[str, str]:
    """Those without data, however often one looks: a rate needs two scrapes with something between them."""
    deadline = time.monotonic() + LOAD_S
    while queries := {name: query for name, query in queries.items() if not watched.has_data(query)}:
        if time.monotonic() > deadline:
            break
        time.sleep(1)
    return queries


def test_every_panel_has_data(watched: Prometheus) -> None:
    values = variables(watched)
    queries = {
        f"{panel['title']} {number}": filled(query, **values)
        for panel in panels()
        for number, query in enumerate(queries_of(panel))
    }
    assert len(queries) > 50
    assert sum("spec_decode" in query for query in queries.values()) >= 4
    assert find_empty(watched, queries) == {}


def test_upstreams_dashboard_has_data_with_its_names_of_now_and_then(watched: Prometheus) -> None:
    queries = {query: filled(query, model_name=MODEL) for query in [*UPSTREAM, *UPSTREAM_OLD]}
    assert watched.label_values("model_name", "vllm:num_requests_running") == [MODEL]
    assert find_empty(watched, queries) == {}


def test_a_query_for_what_is_not_there_is_noticed(watched: Prometheus) -> None:
    assert not watched.has_data("vllm:num_requests_runing")
    assert not watched.has_data('rate(http_requests_total{status="9xx"}[15s])')


def test_all_rules_are_evaluated_and_no_alert_fires(watched: Prometheus) -> None:
    rules = [rule for group in watched.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) >= 30
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] not in ("ok", "unknown")} == {}
    assert [rule["name"] for rule in rules if rule.get("state") == "firing"] == []
    recorded = {rule["name"]: rule["name"] for rule in rules if rule["type"] == "recording"}
    assert find_empty(watched, recorded) == {}


def adapters() -> list[tuple[str, str, dict[str, Any]]]:
    """Where a rule of prometheus-adapter is, the metric that its autoscaler asks for, and the rule."""
    adapter, scaler, _ = yaml.safe_load_all((GRAFANA / "autoscaling.yml").read_text())
    overlay = K8S / "overlays" / "hpa"
    rules = yaml.safe_load((overlay / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    scalers = [scaler, yaml.safe_load((overlay / "horizontalpodautoscaler.yaml").read_text())]
    asked = [one["spec"]["metrics"][0]["pods"]["metric"]["name"] for one in scalers]
    return [("grafana", asked[0], adapter["rules"][0]), ("k8s", asked[1], rules[0])]


@pytest.mark.parametrize(("asked", "rule"), [pytest.param(*rest, id=name) for name, *rest in adapters()])
def test_prometheus_adapter_gets_its_numbers(watched: Prometheus, asked: str, rule: dict[str, Any]) -> None:
    series = rule["seriesQuery"].partition("{")[0]
    query = rule["metricsQuery"]
    filling = {"<<.GroupBy>>": "pod", "<<.Series>>": series, "<<.LabelMatchers>>": 'namespace="tests"'}
    for placeholder, value in filling.items():
        query = query.replace(placeholder, value)
    assert find_empty(watched, {asked: query}) == {}
    assert watched.label_values("pod", rule["seriesQuery"]) == ["breadbox-0"]
    name = rule["name"]
    assert asked == re.sub(name.get("matches", ".*"), name["as"].replace("${1}", r"\1"), series, count=1)


@pytest.mark.parametrize(
    "path",
    [GRAFANA / "autoscaling.yml", K8S / "overlays" / "keda" / "scaledobject.yaml"],
    ids=lambda path: path.parent.name,
)
def test_keda_gets_its_numbers(watched: Prometheus, path: Path) -> None:
    documents = yaml.safe_load_all(path.read_text())
    (scaler,) = (document for document in documents if document.get("kind") == "ScaledObject")
    (trigger,) = scaler["spec"]["triggers"]
    assert find_empty(watched, {path.name: trigger["metadata"]["query"]}) == {}


def test_prometheus_asks_for_openmetrics_and_keeps_the_names(watched: Prometheus) -> None:
    names = watched.label_values("__name__", '{job="breadbox"}')
    assert {"vllm:generation_tokens_total", "vllm:iteration_tokens_total_bucket", "breadbox:build_info"} <= set(names)
    assert not [name for name in names if name.startswith(("vllm_", "U__"))]
