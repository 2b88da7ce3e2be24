"""Render the Helm chart with every file of deploy/helm/cases, and validate what comes out.

    make chart                       needs helm; kubeconform too, to validate
    python -m tools.render_chart

Writes deploy/helm/rendered/CASE.yaml. A file names the digest of what it was rendered from, and the
tests, which have no helm, refuse one that is older than the chart: they check the committed result.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import kubernetes_validate  # type: ignore[import-untyped]

HELM = Path(__file__).resolve().parents[1] / "deploy/helm"
CHART, CASES, RENDERED = HELM / "headrace", HELM / "cases", HELM / "rendered"
KUBERNETES_VERSIONS = ("1.29.0", "1.37.0")  # the oldest and the newest of tests/stack
SCHEMAS = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
# Where the schemas of kubernetes-validate refer to.
DEFINITIONS = "/api/_definitions.json#"
KINDS = (
    "configmap-v1",
    "deployment-apps-v1",
    "networkpolicy-networking-v1",
    "persistentvolumeclaim-v1",
    "service-v1",
    "statefulset-apps-v1",
)
HEAD = "# Rendered by `make chart`; not to be edited. Chart and case: sha256 "


def digest(case: Path) -> str:
    """Of the chart and one file of values."""
    found = hashlib.sha256()
    for path in (*sorted(each for each in CHART.rglob("*") if each.is_file()), case):
        found.update(f"{path.relative_to(HELM)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def helm(*arguments: str) -> str:
    done = subprocess.run(["helm", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"helm {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


def render(case: Path) -> None:
    helm("lint", "--strict", str(CHART), "--values", str(case))
    options = ("--values", str(case), "--kube-version", KUBERNETES_VERSIONS[0])
    text = helm("template", "headrace", str(CHART), *options)
    (RENDERED / case.name).write_text(f"{HEAD}{digest(case)}\n{text}", encoding="utf-8")


def validate(version: str) -> None:
    """By kubeconform, with the schemas that are here: it would fetch its own."""
    with tempfile.TemporaryDirectory() as scratch:
        write_schemas(SCHEMAS / f"v{version}-local-strict", Path(scratch))
        where = f"{scratch}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
        options = ("-strict", "-summary", "-schema-location", where)
        done = subprocess.run(["kubeconform", *options, str(RENDERED)], check=False)
    if done.returncode:
        sys.exit(f"kubeconform refuses it for Kubernetes {version}.")


def write_schemas(source: Path, target: Path) -> None:
    """Each schema that the chart needs as one file, with the definitions in it."""
    definitions = json.loads((source / "_definitions.json").read_text("utf-8"))["$defs"]
    for kind in KINDS:
        schema = json.loads((source / f"{kind}.json").read_text("utf-8"))
        text = json.dumps({**schema, "$defs": definitions}).replace(DEFINITIONS, "#")
        (target / f"{kind}.json").write_text(text, encoding="utf-8")


def main() -> None:
    if shutil.which("helm") is None:
        sys.exit(
            "There is no helm here, so nothing was rendered: "
            "go install helm.sh/helm/v3/cmd/helm@v3.22.0, or see helm.sh."
        )
    cases = sorted(CASES.glob("*.yaml"))
    for case in cases:
        render(case)
    print(f"helm accepts and renders {len(cases)} cases.")
    if shutil.which("kubeconform") is None:
        sys.exit("There is no kubeconform here, so nothing was validated by it.")
    for version in KUBERNETES_VERSIONS:
        validate(version)


if __name__ == "__main__":
    main()
