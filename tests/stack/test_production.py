"""The files and commands of docs/production.md: what can be checked without an engine is."""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from headrace.stack.envoy import executable
from headrace.stack.ports import PORT_MAP, Ports
from headrace.stack.tokens import TokenKeys, TokenKind
from headrace.testing.certificates import write_self_signed
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import DEADLINE_SECS, eventually

ROOT = Path(__file__).resolve().parents[2]
HEADRACE = [sys.executable, "-m", "headrace.cli"]


def headrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*HEADRACE, *arguments], capture_output=True, text=True, check=False)


# --- Envoy with an identity provider and TLS ---


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    """A server that answers every GET with `body`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
def test_the_printed_configuration_verifies_against_remote_keys_behind_tls(tmp_path: Path) -> None:
    keys = TokenKeys(tmp_path)
    keys.ensure()
    trusted = write_self_signed(tmp_path / "tls.crt", tmp_path / "tls.key")
    ports = Ports(any_free=True)
    listen = f"127.0.0.1:{ports.give('envoy')}"
    with answering(keys.jwks_file.read_bytes()) as provider, answering(b"upstream") as server:
        printed = headrace(
            *("stack", "envoy-config", "--server", server, "--listen", listen),
            *("--admin", str(tmp_path / "admin.sock")),
            *("--stats", f"127.0.0.1:{ports.give('envoy-stats')}"),
            *("--jwks-uri", f"http://{provider}/jwks.json"),
            *("--issuer", "durable-streams-test", "--audience", "durable-streams"),
            *("--tls-cert", str(tmp_path / "tls.crt"), "--tls-key", str(tmp_path / "tls.key")),
        )
        assert printed.returncode == 0, printed.stderr
        config = tmp_path / "envoy.json"
        config.write_text(printed.stdout)
        command = [str(executable()), "--config-path", str(config), "--disable-hot-restart"]
        with (tmp_path / "envoy.log").open("wb") as log:
            process = subprocess.Popen([*command, "--log-level", "warning"], stdout=log, stderr=log)
        try:
            with httpx.Client(
                base_url=f"https://{listen}", verify=trusted, timeout=DEADLINE_SECS
            ) as client:
                eventually(lambda: _status(client, "/healthz") == 200, "Envoy answers")
                assert client.get("/v1/stream/x").status_code == 401
                for kind, status in ((TokenKind.VALID, 200), (TokenKind.FORGED, 401)):
                    headers = {"Authorization": f"Bearer {keys.mint(kind)}"}
                    assert client.get("/v1/stream/x", headers=headers).status_code == status
        finally:
            process.terminate()
            process.wait(DEADLINE_SECS)


def _status(client: httpx.Client, path: str) -> int:
    try:
        return client.get(path).status_code
    except httpx.TransportError:
        return 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tls-cert", "a.crt"], "go together"),
        (["--jwks-uri", "https://idp.example/keys"], "needs --issuer and --audience"),
        (["--jwks-uri", "ftp://x/y", "--issuer", "i", "--audience", "a"], "is not an http"),
        (["--listen", "8080"], "is not an address and a port"),
        (["--listen", "host:99999"], "is not an address and a port"),
        (["--admin", "127.0.0.1:9901"], "the admin API is a Unix socket"),
        (["--admin", "/" + "x" * 200], "of at most 107 bytes"),
    ],
)
def test_a_bad_envoy_config_is_refused_in_a_sentence(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    done = headrace("stack", "envoy-config", "--state", str(tmp_path), *arguments)
    assert done.returncode == 2
    assert words in done.stderr


# --- containers ---


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


def in_profile(compose: dict[str, Any], *profiles: str) -> set[str]:
    services = compose["services"].items()
    return {
        name
        for name, service in services
        if not service.get("profiles") or set(service["profiles"]) & set(profiles)
    }


def test_the_profiles_are_the_stack_s(compose: dict[str, Any]) -> None:
    default = {"server", "envoy", "keys"}
    sync = {"postgres", "prepare", "sync", "monitor"}
    assert in_profile(compose) == default
    assert in_profile(compose, "sync") == default | sync
    assert in_profile(compose, "dev") == default | sync | {"heartbeat", "adminer", "shapes"}


def test_the_ports_are_the_stack_s(compose: dict[str, Any]) -> None:
    published = {
        int(mapping.split(":")[-2])
        for service in compose["services"].values()
        for mapping in service.get("ports", [])
    }
    # The stream browser is at /ui of the server; only Envoy is reachable from elsewhere.
    assert published == set(PORT_MAP.values()) - {PORT_MAP["ui"]}
    open_to_all = [
        mapping
        for service in compose["services"].values()
        for mapping in service.get("ports", [])
        if not mapping.startswith("127.0.0.1:")
    ]
    assert open_to_all == ["8080:8080"]


def test_what_services_depend_on_and_mount_exists(compose: dict[str, Any]) -> None:
    volumes = set(compose["volumes"])
    for name, service in compose["services"].items():
        needed = set(service.get("depends_on", {}))
        assert needed <= set(compose["services"]), name
        profiles = service.get("profiles") or [""]
        for profile in profiles:
            assert needed <= in_profile(compose, profile), f"{name} in {profile}"
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            assert (ROOT / source).is_file() if source.startswith("./") else source in volumes, name


def test_the_signing_key_is_mounted_only_where_tokens_are_made(compose: dict[str, Any]) -> None:
    """It used to be made readable to all, for Envoy, which needs the public half."""
    holders = {
        name
        for name, service in compose["services"].items()
        if any(mount.startswith("state:") for mount in service.get("volumes", []))
    }
    assert holders == {"keys"}
    assert "chmod" not in json.dumps(compose)


@pytest.mark.slow
def test_the_configuration_for_envoy_holds_no_private_key(tmp_path: Path) -> None:
    done = headrace("stack", "envoy-config", "--state", str(tmp_path))
    assert done.returncode == 0, done.stderr
    private = json.loads(TokenKeys(tmp_path).private_file.read_text())
    assert private["d"] not in done.stdout
    assert json.dumps(private["n"])[1:-1] in done.stdout
    assert stat.S_IMODE(TokenKeys(tmp_path).private_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(TokenKeys(tmp_path).private_file.parent.stat().st_mode) == 0o700


def test_images_are_pinned_by_digest(compose: dict[str, Any]) -> None:
    images = [s["image"] for s in compose["services"].values() if "image" in s]
    text = (ROOT / "Dockerfile").read_text()
    images += re.findall(r"^ARG PYTHON=(\S+)$", text, re.MULTILINE)
    bases = set(re.findall(r"^FROM (\S+) AS", text, re.MULTILINE))
    assert bases == {"${PYTHON}", "base"}
    assert len(images) == 4
    page = (ROOT / "docs/production.md").read_text()
    for image in images:
        assert re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", image), image
        assert image.partition("@")[0] in page, "the page says where each digest comes from"


def test_pages_that_are_published_know_their_hosts(compose: dict[str, Any]) -> None:
    """Inside a container they listen everywhere, where any host is answered unless told."""
    for name in ("server", "monitor", "shapes"):
        allowed = compose["services"][name]["environment"]["DS_SERVER__ALLOWED_HOSTS"]
        assert name in allowed.split(",")
    adminer = compose["services"]["adminer"]
    assert adminer["command"][-1] == "/guard/adminer_guard.php"
    database = compose["services"]["postgres"]["environment"]["POSTGRES_DB"]
    assert adminer["environment"]["ADMINER_LOGIN"].endswith(f"&db={database}")


def test_the_commands_of_services_exist(compose: dict[str, Any]) -> None:
    asked = {
        tuple(command)
        for service in compose["services"].values()
        for command in headrace_commands(service.get("command", []))
    }
    assert len(asked) >= 6
    for command in asked:
        done = headrace(*command, "--help")
        assert done.returncode == 0, command


def headrace_commands(command: list[str]) -> Iterator[list[str]]:
    """The verbs of each `headrace` call in a command, shell or not."""
    for words in (command, command[-1].split() if command else []):
        if words and words[0] == "headrace":
            verbs = words[1:3] if words[1] in ("stack", "pipeline") else words[1:2]
            yield verbs


def test_the_image_is_built_from_what_is_there(compose: dict[str, Any]) -> None:
    text = (ROOT / "Dockerfile").read_text()
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE))
    wanted = {
        service["build"]["target"] for service in compose["services"].values() if "build" in service
    }
    assert wanted <= stages
    kept = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    for sources in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source
            assert source.split("/")[0] in kept, f"{source} is left out by .dockerignore"


def test_what_is_mounted_into_the_image_can_be_written_there(compose: dict[str, Any]) -> None:
    """A volume over a directory that the image lacks belongs to root; the image runs as another."""
    made = re.search(
        r"mkdir -p ([^&]+)&& chown -R headrace /data\b", (ROOT / "Dockerfile").read_text()
    )
    assert made is not None
    mounts = {
        mount.split(":")[1]
        for service in compose["services"].values()
        for mount in service.get("volumes", [])
        if "build" in service
    }
    assert mounts == set(made[1].split())


# --- systemd ---


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("unit", sorted(path.name for path in (ROOT / "deploy").glob("*.service")))
def test_the_units_are_valid(tmp_path: Path, unit: str) -> None:
    """systemd wants the programs to exist, so each stands for itself under another name."""
    text = (ROOT / "deploy" / unit).read_text()
    assert "ExecStart=/opt/headrace/bin/" in text
    text = re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", text)
    (tmp_path / unit).write_text(text)
    for other in (ROOT / "deploy").glob("*.service"):
        if other.name != unit:
            shutil.copy(other, tmp_path)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Restart=always" in text
    complaints = [line for line in done.stderr.splitlines() if line.startswith(str(tmp_path))]
    assert complaints == [], done.stderr


# --- backups ---


@pytest.mark.slow
def test_a_copy_of_a_stopped_server_is_a_backup(tmp_path: Path) -> None:
    def serve(directory: Path) -> ServerProcess:
        env = {"DS_STORAGE__MODE": "file-durable", "DS_STORAGE__DATA_DIR": str(directory)}
        return ServerProcess(env, cwd=str(tmp_path))

    with serve(tmp_path / "streams") as server:
        httpx.put(f"{server.url}/v1/stream/kept", content=b"kept").raise_for_status()
    shutil.copytree(tmp_path / "streams", tmp_path / "backup")
    verified = headrace("verify", str(tmp_path / "backup"))
    assert verified.returncode == 0, verified.stdout
    with serve(tmp_path / "backup") as restored:
        assert httpx.get(f"{restored.url}/v1/stream/kept").content == b"kept"


def test_the_scrape_configuration_names_ports_of_the_stack() -> None:
    page = (ROOT / "docs/production.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (block,) = [block for block in blocks if "scrape_configs" in block]
    targets = json.dumps(yaml.safe_load(block))
    ports = {int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", targets)}
    pipelines = int(re.findall(r"--metrics-listen (\d+)", block)[0])
    assert ports == {PORT_MAP[name] for name in ("server", "monitor", "envoy-stats")} | {pipelines}
