"""The manifests of deploy/kubernetes: valid by Kubernetes' own schemas, and true to Headrace.

No cluster is at hand: what they start is not started here.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from headrace.config import SETTINGS
from headrace.spark.pipelines import names, pipeline

kubernetes_validate = pytest.importorskip(
    "kubernetes_validate", reason="`make setup` installs kubernetes-validate"
)

HERE = Path(__file__).resolve().parents[2] / "deploy/kubernetes"
DOCKERFILE = (HERE.parents[1] / "Dockerfile").read_text("utf-8")
FILES = sorted(HERE.glob("*.yaml"))
VERSIONS = ("1.29", "1.37")  # the oldest and the newest that were tried


def documents() -> Iterator[dict[str, Any]]:
    for path in FILES:
        yield from yaml.safe_load_all(path.read_text("utf-8"))


def workloads() -> list[dict[str, Any]]:
    return [each for each in documents() if each["kind"] in ("Deployment", "StatefulSet")]


def containers() -> list[dict[str, Any]]:
    return [each["spec"]["template"]["spec"]["containers"][0] for each in workloads()]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [each for each in documents() if each["kind"] == kind]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_kubernetes_accepts_every_document(path: Path, version: str) -> None:
    found = list(yaml.safe_load_all(path.read_text("utf-8")))
    assert found
    for document in found:
        kubernetes_validate.validate(document, version, strict=True)


def test_a_mistake_in_a_manifest_would_be_found() -> None:
    [server, _] = workloads()
    server["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(server, VERSIONS[-1], strict=True)


def test_selectors_find_the_pods_that_they_are_for() -> None:
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in workloads()]
    for each, own in zip(workloads(), labels, strict=True):
        assert each["spec"]["selector"]["matchLabels"].items() <= own.items()
        assert each["spec"]["replicas"] == 1
    [service] = of_kind("Service")
    assert sum(service["spec"]["selector"].items() <= own.items() for own in labels) == 1
    [policy] = of_kind("NetworkPolicy")
    [rule] = policy["spec"]["ingress"]
    allowed = rule["from"][0]["podSelector"]["matchLabels"]
    assert [allowed.items() <= own.items() for own in labels].count(True) == 1


def test_ports_and_volumes_that_are_named_are_there() -> None:
    for workload, container in zip(workloads(), containers(), strict=True):
        ports = {port["name"] for port in container["ports"]}
        probes = [value for name, value in container.items() if name.endswith("Probe")]
        asked = {(p.get("httpGet") or p.get("tcpSocket"))["port"] for p in probes}
        assert asked <= ports
        spec = workload["spec"]
        claims = [each["metadata"]["name"] for each in spec.get("volumeClaimTemplates", [])]
        volumes = {each["name"] for each in spec["template"]["spec"]["volumes"]} | set(claims)
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    [service] = of_kind("Service")
    assert service["spec"]["ports"][0]["port"] == 4437


def test_pods_run_as_the_account_that_the_image_has() -> None:
    made = re.search(r"useradd .*--uid (\d+)", DOCKERFILE)
    assert made is not None
    for workload in workloads():
        account = workload["spec"]["template"]["spec"]["securityContext"]
        assert {account["runAsUser"], account["fsGroup"]} == {int(made[1])}


def test_the_server_is_given_settings_that_exist() -> None:
    server = containers()[[each["kind"] for each in workloads()].index("StatefulSet")]
    assert {each["name"] for each in server["env"]} <= {setting.env for setting in SETTINGS}
    assert server["args"] == ["headrace", "serve"]


def test_the_pipelines_are_configured_as_they_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    [container] = [each for each in containers() if "pipeline" in each["args"]]
    [config] = of_kind("ConfigMap")
    tables = tomllib.loads(config["data"]["pipelines.toml"])
    for variable in container["env"]:
        scheme = "postgresql" if "POSTGRES" in variable["name"] else "http"
        monkeypatch.setenv(variable["name"], f"{scheme}://host/database")
    run = [name for name in container["args"] if name in names()]
    assert run == [name for name in tables if name != "spark"]
    for name in run:
        pipeline(name).configure(tables[name])
    listen = container["args"][container["args"].index("--metrics-listen") + 1]
    assert listen.endswith(f":{container['ports'][0]['containerPort']}")
