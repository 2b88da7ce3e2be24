"""The Helm chart, by what helm made of it: `make chart` renders, and the result is committed.

Neither helm nor a cluster is needed. A rendering that is older than the chart fails.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema_rs
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]
from typer.testing import CliRunner

from headrace import __version__
from headrace.cli import command
from headrace.config import SETTINGS
from headrace.spark.pipelines import names, pipeline
from tests.stack.test_kubernetes import DOCKERFILE, VERSIONS
from tests.stack.test_kubernetes import HERE as MANIFESTS
from tools.render_chart import CASES, CHART, HEAD, RENDERED, digest

CASE_FILES = sorted(CASES.glob("*.yaml"))
TEMPLATES = "\n".join(path.read_text("utf-8") for path in sorted((CHART / "templates").iterdir()))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text("utf-8"))


def rendered(case: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((RENDERED / case).read_text("utf-8")) if each]


def pod(case: str, kind: str, name: str) -> dict[str, Any]:
    [found] = [
        each for each in rendered(case) if each["kind"] == kind and each["metadata"]["name"] == name
    ]
    template: dict[str, Any] = found["spec"]["template"]["spec"]
    return template


def value_paths(values: dict[str, Any], prefix: str = "") -> set[str]:
    """Every value by its path; of a value that is empty or a list, the path of itself."""
    found = set()
    for key, value in values.items():
        path = f"{prefix}{key}"
        is_table = isinstance(value, dict) and value and key != "resources"
        found |= value_paths(value, f"{path}.") if is_table else {path}
    return found


@pytest.mark.parametrize("case", CASE_FILES, ids=lambda case: case.name)
def test_what_is_committed_was_rendered_from_this_chart(case: Path) -> None:
    first = (RENDERED / case.name).read_text("utf-8").splitlines()[0]
    assert first == f"{HEAD}{digest(case)}", "the chart has changed since: run `make chart`"


def test_no_rendering_is_of_a_case_that_is_gone() -> None:
    assert {path.name for path in RENDERED.iterdir()} == {path.name for path in CASE_FILES}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", CASE_FILES, ids=lambda case: case.name)
def test_kubernetes_accepts_every_document(case: Path, version: str) -> None:
    for document in rendered(case.name):
        kubernetes_validate.validate(document, version, strict=True)


def test_every_value_is_used_and_every_value_that_is_used_exists() -> None:
    used = set(re.findall(r"\.Values\.([A-Za-z.]+)", TEMPLATES))
    paths = value_paths(VALUES)
    # What is handed on whole (`headrace.claim`) is used through the table that it is in.
    assert used <= paths | {"persistence", "pipelines.persistence"}
    handed_on = {"persistence.size", "persistence.storageClass"}
    handed_on |= {f"pipelines.{path}" for path in handed_on}
    assert paths - used <= handed_on


@pytest.mark.parametrize(
    "wrong",
    [
        {"storage": {"mode": "durable"}},
        {"settings": {"limits.max_memory_bytes": 500_000_000}},  # helm would write 5e+08
        {"settings": {"DS_SERVER__PORT": "1"}},
        {"settings": {"server.port": "1"}},  # the probes and the Service have their own
        {"envoy": {"jwksURI": "https://idp.example.com/keys"}},
        {"persistance": {"enabled": False}},
    ],
)
def test_the_schema_accepts_the_values_and_refuses_mistakes(wrong: dict[str, Any]) -> None:
    assert jsonschema_rs.is_valid(SCHEMA, VALUES)
    assert not jsonschema_rs.is_valid(SCHEMA, wrong)


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert chart["version"] == chart["appVersion"] == __version__


@pytest.mark.parametrize(
    ("case", "kind", "name", "manifest"),
    [
        ("default.yaml", "StatefulSet", "headrace", "server.yaml"),
        ("everything.yaml", "Deployment", "headrace-pipelines", "pipelines.yaml"),
    ],
)
def test_pods_are_those_of_the_plain_manifests(
    case: str, kind: str, name: str, manifest: str
) -> None:
    documents = yaml.safe_load_all((MANIFESTS / manifest).read_text("utf-8"))
    [plain] = [each["spec"]["template"]["spec"] for each in documents if each["kind"] == kind]
    ours = pod(case, kind, name)
    [container], [plain_container] = ours["containers"], plain["containers"]
    for each in ("args", "ports", "resources", "securityContext", "volumeMounts"):
        assert container[each] == plain_container[each]
    for each in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container.get(each) == plain_container.get(each)
    assert ours["volumes"] == plain["volumes"]
    assert plain["securityContext"].items() <= ours["securityContext"].items()
    assert ours["terminationGracePeriodSeconds"] == plain["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("case", CASE_FILES, ids=lambda case: case.name)
def test_the_server_is_given_settings_that_exist(case: Path) -> None:
    [server] = pod(case.name, "StatefulSet", "headrace")["containers"]
    assert {each["name"] for each in server["env"]} <= {setting.env for setting in SETTINGS}


def test_what_stores_nothing_has_no_disk() -> None:
    memory = pod("memory.yaml", "StatefulSet", "headrace")
    assert [volume["name"] for volume in memory["volumes"]] == ["tmp"]
    ephemeral = pod("behind-ingress.yaml", "StatefulSet", "headrace")
    assert {"name": "data", "emptyDir": {}} in ephemeral["volumes"]


@pytest.mark.parametrize("case", CASE_FILES, ids=lambda case: case.name)
def test_pods_name_volumes_that_they_have_and_run_as_the_account_of_the_image(case: Path) -> None:
    account = re.search(r"useradd .*--uid (\d+)", DOCKERFILE)
    assert account is not None
    for each in rendered(case.name):
        if each["kind"] not in ("Deployment", "StatefulSet"):
            continue
        spec = each["spec"]["template"]["spec"]
        claims = [
            claim["metadata"]["name"] for claim in each["spec"].get("volumeClaimTemplates", [])
        ]
        volumes = {volume["name"] for volume in spec["volumes"]} | set(claims)
        containers = (*spec.get("initContainers", ()), *spec["containers"])
        assert {m["name"] for c in containers for m in c["volumeMounts"]} == volumes
        assert spec["securityContext"]["runAsUser"] == int(account[1])
        assert each["spec"]["selector"]["matchLabels"].items() <= (
            each["spec"]["template"]["metadata"]["labels"].items()
        )


@pytest.mark.parametrize("case", ["everything.yaml", "behind-ingress.yaml"])
def test_the_command_of_the_chart_makes_a_configuration_of_envoy(case: str) -> None:
    spec = pod(case, "Deployment", "headrace-envoy")
    [config] = spec["initContainers"]
    assert config["args"][0] == "headrace"
    made = CliRunner().invoke(command(), config["args"][1:])
    assert made.exit_code == 0, made.output
    text = made.stdout
    public, stats = json.loads(text)["static_resources"]["listeners"]
    ports = {port["name"]: port["containerPort"] for port in spec["containers"][0]["ports"]}
    for listener, name in ((public, "public"), (stats, "stats")):
        assert listener["address"]["socket_address"]["port_value"] == ports[name]
    values = yaml.safe_load((CASES / case).read_text("utf-8"))["envoy"]
    assert json.dumps(values["audience"]) in text
    [service] = [
        each["spec"]["ports"][0]
        for each in rendered(case)
        if each["kind"] == "Service" and each["metadata"]["name"] == "headrace"
    ]
    assert f'"headrace:{service["port"]}"' in text
    assert ('"/tls/tls.key"' in text) == ("tlsSecret" in values)
    assert ("tls" in {volume["name"] for volume in spec["volumes"]}) == ("tlsSecret" in values)


def test_the_pipelines_are_configured_as_they_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTGRES_URL", "postgresql://host/database")
    [container] = pod("everything.yaml", "Deployment", "headrace-pipelines")["containers"]
    [config] = [each for each in rendered("everything.yaml") if each["kind"] == "ConfigMap"]
    tables = tomllib.loads(config["data"]["pipelines.toml"])
    run = [name for name in container["args"] if name in names()]
    assert run == [name for name in tables if name != "spark"] == VALUES["pipelines"]["run"]
    for name in run:
        pipeline(name).configure(tables[name])
