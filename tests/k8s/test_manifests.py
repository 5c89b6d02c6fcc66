"""The manifests: right by the schemas of several Kubernetes versions, and right in what no schema knows."""

from __future__ import annotations

import re
from typing import Any

import kubernetes_validate
import pytest
import yaml

from appliance.settings import load_settings
from tests.k8s.manifests import OVERLAYS, ROOT, container_of, environment_of, of_kind, render

VERSIONS = ("1.29", "1.31", "1.33", "1.35", "1.37")
# Kinds that belong to somebody else than Kubernetes, with the fields of their spec that we use.
FOREIGN = {
    "ServiceMonitor": {"selector", "endpoints"},
    "HTTPRoute": {"parentRefs", "rules"},
    "ScaledObject": {
        *("scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod", "fallback"),
        "triggers",
    },
}
DOCKERFILE = (ROOT / "Dockerfile").read_text()
deployments = [
    (overlay, index) for overlay in OVERLAYS for index in range(2 if overlay in ("bluegreen", "canary") else 1)
]
each_deployment = pytest.mark.parametrize(("overlay", "index"), deployments)
each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


def deployment(overlay: str, index: int) -> dict[str, Any]:
    return of_kind(overlay, "Deployment")[index]


def labels_of_pods(overlay: str) -> list[dict[str, str]]:
    return [one["spec"]["template"]["metadata"]["labels"] for one in of_kind(overlay, "Deployment")]


def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


@pytest.mark.parametrize("version", VERSIONS)
@each_overlay
def test_schemas(overlay: str, version: str) -> None:
    for one in render(overlay):
        if one["kind"] in FOREIGN:
            assert set(one["spec"]) <= FOREIGN[one["kind"]]
        else:
            kubernetes_validate.validate(one, version, strict=True)


@each_overlay
def test_selectors_find_the_pods(overlay: str) -> None:
    for one in of_kind(overlay, "Deployment"):
        assert selects(one["spec"]["selector"]["matchLabels"], one["spec"]["template"]["metadata"]["labels"])
    for service in of_kind(overlay, "Service"):
        assert sum(selects(service["spec"]["selector"], labels) for labels in labels_of_pods(overlay)) == 1
    for kind, field in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        (one,) = of_kind(overlay, kind)
        assert all(selects(one["spec"][field]["matchLabels"], labels) for labels in labels_of_pods(overlay))
    for monitor in of_kind(overlay, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"]
        services = of_kind(overlay, "Service")
        assert all(selects(wanted, service["metadata"]["labels"]) for service in services)
        names = {port["name"] for service in services for port in service["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= names


@each_overlay
def test_named_ports_exist(overlay: str) -> None:
    for one in of_kind(overlay, "Deployment"):
        container = container_of(one)
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert all(len(name) <= 15 for name in ports)
        probes = [container[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
        targets = [port["targetPort"] for service in of_kind(overlay, "Service") for port in service["spec"]["ports"]]
        policies = [
            rule["port"]
            for policy in of_kind(overlay, "NetworkPolicy")
            for ingress in policy["spec"]["ingress"]
            for rule in ingress["ports"]
        ]
        assert {*(probe["port"] for probe in probes), *targets, *policies} <= set(ports)
        environment = environment_of(one)
        assert ports == {"http": int(environment["BREADBOX_PORT"]), "metrics": int(environment["BREADBOX_ADMIN_PORT"])}
        annotations = one["spec"]["template"]["metadata"]["annotations"]
        assert int(annotations["prometheus.io/port"]) == ports["metrics"]


@each_deployment
def test_the_restricted_profile(overlay: str, index: int) -> None:
    pod = deployment(overlay, index)["spec"]["template"]["spec"]
    container = container_of(deployment(overlay, index))
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert all(set(volume) <= {"name", "emptyDir"} for volume in pod["volumes"])


@each_deployment
def test_it_fits_the_image(overlay: str, index: int) -> None:
    one = deployment(overlay, index)
    user = one["spec"]["template"]["spec"]["securityContext"]
    assert f"USER {user['runAsUser']}:{user['runAsGroup']}\n" in DOCKERFILE
    assert "EXPOSE 8000\n" in DOCKERFILE
    assert [mount["mountPath"] for mount in container_of(one)["volumeMounts"]] == ["/tmp"]
    load_settings({}, environment_of(one))  # names and values of all variables


@each_deployment
def test_time_to_stop_suffices(overlay: str, index: int) -> None:
    """preStop, then the API's drain, then what supervisord gives API, engine and nginx on top (10 + 15 + 10 s)."""
    one = deployment(overlay, index)
    words = container_of(one)["lifecycle"]["preStop"]["exec"]["command"]
    assert words[:2] == ["breadbox", "drain"]
    pre_stop_s = float(words[words.index("--timeout") + 1])
    shutdown_s = float(environment_of(one)["BREADBOX_SHUTDOWN_TIMEOUT"])
    grace_s = one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s >= pre_stop_s + shutdown_s + 35


@each_deployment
def test_a_slow_start_is_not_killed(overlay: str, index: int) -> None:
    """A cold start takes seconds; a machine that is ten times slower must start, too."""
    probe = container_of(deployment(overlay, index))["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 100
    assert probe["httpGet"]["path"] == "/startupz"


@each_deployment
def test_a_gpu_is_a_limit(overlay: str, index: int) -> None:
    resources = container_of(deployment(overlay, index))["resources"]
    number = resources["limits"].get("nvidia.com/gpu", 0)
    assert number == (1 if overlay == "gpu" else 0)
    assert resources["requests"].get("nvidia.com/gpu", number) == number
    assert "cpu" not in resources["limits"]  # a throttled engine stalls all streams


@pytest.mark.parametrize("overlay", ["hpa", "keda"])
def test_one_owner_of_the_number_of_replicas(overlay: str) -> None:
    (one,) = of_kind(overlay, "Deployment")
    assert "replicas" not in one["spec"]
    scalers = of_kind(overlay, "HorizontalPodAutoscaler") + of_kind(overlay, "ScaledObject")
    (scaler,) = scalers
    assert scaler["spec"]["scaleTargetRef"]["name"] == one["metadata"]["name"]


@each_overlay
def test_an_eviction_is_always_possible(overlay: str) -> None:
    (budget,) = of_kind(overlay, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    assert "minAvailable" not in budget["spec"]


def test_the_metric_of_the_autoscaler_is_what_the_adapter_makes_of_ours() -> None:
    rules = yaml.safe_load((ROOT / "k8s/overlays/hpa/prometheus-adapter.yaml").read_text())["rules"]["custom"]
    (rule,) = rules
    series = rule["seriesQuery"].split("{")[0]
    assert series == "vllm:num_requests_waiting"
    renamed = re.sub(rule["name"]["matches"], rule["name"]["as"].replace("${1}", r"\1"), series)
    (scaler,) = of_kind("hpa", "HorizontalPodAutoscaler")
    (metric,) = scaler["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == renamed
    (scaled,) = of_kind("keda", "ScaledObject")
    (trigger,) = scaled["spec"]["triggers"]
    assert series in trigger["metadata"]["query"]


def test_the_weights_of_the_canary() -> None:
    (route,) = of_kind("canary", "HTTPRoute")
    (rule,) = route["spec"]["rules"]
    services = {service["metadata"]["name"] for service in of_kind("canary", "Service")}
    assert {one["name"] for one in rule["backendRefs"]} == services
    assert sum(one["weight"] for one in rule["backendRefs"]) == 100


def test_two_colours_behind_one_service() -> None:
    (service,) = of_kind("bluegreen", "Service")
    assert service["spec"]["selector"]["breadbox/colour"] == "blue"
    assert sorted(one["metadata"]["name"] for one in of_kind("bluegreen", "Deployment")) == [
        "breadbox-blue",
        "breadbox-green",
    ]
