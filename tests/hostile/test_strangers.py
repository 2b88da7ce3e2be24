"""Strangers: web pages that a browser lets near a developer's server, and holders of a token.

A page may send requests to this machine (with its `Origin`), and its name may be made to resolve
to this machine (with its own `Host`, and then as if of one origin with the server). A holder of a
token may have the server itself send requests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from headrace.config import Config, Server
from headrace.http.access import Access, access_of
from headrace.http.forwarded import ForwardedOrigins
from headrace.protocol.access import HostRules
from headrace.stack import adminer, database_page
from headrace.testing.ports import free_port, is_listening
from headrace.testing.raw_http import RawConnection, RawResponse, request_bytes
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import DEADLINE_SECS, eventually
from tests.conftest import Serve
from tests.subscriptions.api import ROOT, Api, code
from tests.subscriptions.receiver import Receiver

EVIL = "https://evil.example"
TEXT = "text/plain"
OWN_HOSTS = [
    "localhost",
    "LocalHost:4437",
    "localhost.",
    "app.localhost:1",
    "127.0.0.1",
    "127.0.0.1:4437",
    "127.9.9.9:80",
    "[::1]",
    "[::1]:4437",
    "[0:0:0:0:0:0:0:1]:1",
]
FOREIGN_HOSTS = [
    "evil.example",
    "evil.example:4437",
    "localhost.evil.example",
    "127.0.0.1.nip.io",
    "evil-localhost",
    "0.0.0.0:4437",
    "192.168.1.2",
    "10.0.0.1:4437",
    "[::]:4437",
    "[::ffff:127.0.0.1]",
    "[fe80::1]:80",
    "2130706433",
    "127.1",
    "0x7f.1",
]


def ask(
    server: ServerProcess, method: str, path: str, body: bytes = b"", **headers: str
) -> RawResponse:
    with RawConnection(server.port) as connection:
        return connection.request(method, path, body, **headers)


# -- names that were made to resolve to this machine -----------------------------------------------


@pytest.mark.parametrize("host", OWN_HOSTS)
def test_a_server_on_loopback_answers_under_every_name_of_loopback(
    server: ServerProcess, host: str
) -> None:
    assert ask(server, "GET", "/healthz", Host=host).status == 200


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_a_server_on_loopback_answers_under_no_other_name(server: ServerProcess, host: str) -> None:
    answer = ask(server, "GET", "/healthz", Host=host)
    assert answer.status == 421
    document = answer.json()
    assert document["type"] == "urn:headrace:problem:misdirected-request"
    assert document["host"] == host
    assert "server.allowed_hosts" in document["detail"]


def test_a_rebound_page_reads_writes_and_deletes_nothing(
    server: ServerProcess, stream: str
) -> None:
    """To its browser it is of one origin with the server: nothing but the Host tells."""
    page = {"Host": "evil.example:4437", "Origin": "http://evil.example:4437"}
    page["Sec-Fetch-Site"] = "same-origin"
    assert ask(server, "PUT", stream, b"kept", Content_Type=TEXT).status == 201
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
        body = b"more" if method == "POST" else b""
        answer = ask(server, method, stream, body, Content_Type=TEXT, **page)
        assert answer.status == 421, method
        assert b"kept" not in answer.body
    assert ask(server, "GET", stream).body == b"kept"


def test_a_host_is_judged_again_when_it_changes_on_a_connection(
    server: ServerProcess, stream: str
) -> None:
    """Heads that equal the last one are not parsed: another Host is another head."""
    with RawConnection(server.port) as connection:
        connection.request("PUT", stream, Content_Type=TEXT)
        for _ in range(3):
            appended = connection.request("POST", stream, b"a", Content_Type=TEXT)
            assert appended.status == 204
        refused = connection.request("POST", stream, b"a", Content_Type=TEXT, Host="evil.example")
        assert refused.status == 421
    assert ask(server, "GET", stream).body == b"aaa"


def test_an_operator_lists_the_names_that_clients_use(serve: Serve) -> None:
    server = serve(
        DS_SERVER__ALLOWED_HOSTS="streams.example, 192.0.2.7",
        DS_SERVER__PUBLIC_URL="https://public.example:8443/streams",
    )
    for host in ("streams.example", "Streams.Example:80", "192.0.2.7", "public.example", "[::1]"):
        assert ask(server, "GET", "/healthz", Host=host).status == 200, host
    for host in ("other.example", "a.streams.example", "192.0.2.8"):
        assert ask(server, "GET", "/healthz", Host=host).status == 421, host


def test_a_server_that_listens_elsewhere_answers_under_any_name_unless_told(serve: Serve) -> None:
    public = serve(DS_SERVER__HOST="0.0.0.0")
    assert ask(public, "GET", "/healthz", Host="streams.example").status == 200
    told = serve(DS_SERVER__HOST="0.0.0.0", DS_SERVER__ALLOWED_HOSTS="streams.example")
    assert ask(told, "GET", "/healthz", Host="streams.example").status == 200
    assert ask(told, "GET", "/healthz", Host="127.0.0.1:4437").status == 200, "its own probe"
    assert ask(told, "GET", "/healthz", Host="evil.example").status == 421
    opened = serve(DS_SERVER__ALLOWED_HOSTS="*")
    assert ask(opened, "GET", "/healthz", Host="streams.example").status == 200


def test_a_host_costs_one_check_however_many_requests_name_it(stream: str) -> None:
    from headrace.clock import SystemClock
    from headrace.http.connections.reader import BodyBudget, ReaderLimits, RequestReader
    from headrace.http.connections.response_head import ResponseHead
    from headrace.http.cors import CorsPolicy
    from headrace.http.exchange import Client

    asked: list[bytes] = []

    class Counted(HostRules):
        def admits(self, host: bytes) -> bool:
            asked.append(host)
            return super().admits(host)

    response_head = ResponseHead(SystemClock(), CorsPolicy(()))
    limits = ReaderLimits(access=Access(Counted()))
    reader = RequestReader(limits, BodyBudget(10**6), response_head, Client("127.0.0.1"))
    for number in range(100):
        reader.feed(request_bytes("POST", stream, b"x" * (1 + number % 20), Content_Type=TEXT))
        reader.feed(request_bytes("GET", f"{stream}-{number}"))
    assert (len(reader.ready), reader.refusal) == (200, None)
    assert asked == [b"localhost"]


# -- pages of other origins ------------------------------------------------------------------------

FOREIGN_PAGES = [
    {"Origin": EVIL},
    {"Origin": "null"},
    {"Origin": "http://localhost:3000"},
    {"Origin": "http://localhost.evil.example"},
    {"Origin": "http://[::1"},
    {"Origin": EVIL, "Sec-Fetch-Site": "cross-site"},
    {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "anything"},
]
OWN_PAGES = [
    {},
    {"Origin": "http://localhost"},
    {"Origin": "HTTP://LOCALHOST"},
    {"Origin": "https://localhost"},
    {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "none"},
]


@pytest.mark.parametrize("page", FOREIGN_PAGES, ids=str)
def test_a_page_of_another_origin_changes_nothing(
    server: ServerProcess, stream: str, page: dict[str, str]
) -> None:
    """A POST of text needs no preflight: the browser just sends it."""
    assert ask(server, "PUT", stream, b"kept", Content_Type=TEXT).status == 201
    for method, path in (("POST", stream), ("PUT", f"{stream}-new"), ("DELETE", stream)):
        refused = ask(server, method, path, b"evil", Content_Type=TEXT, **page)
        assert refused.status == 403, method
        assert refused.json()["type"] == "urn:headrace:problem:cross-origin-request"
        assert "http.cors_origins" in refused.json()["detail"]
    assert ask(server, "GET", stream).body == b"kept"
    assert ask(server, "HEAD", f"{stream}-new").status == 404


@pytest.mark.parametrize("page", OWN_PAGES, ids=str)
def test_the_server_s_own_page_and_programs_may_write(
    server: ServerProcess, stream: str, page: dict[str, str]
) -> None:
    path = f"{stream}-{OWN_PAGES.index(page)}"
    assert ask(server, "PUT", path, b"", Content_Type=TEXT, **page).status == 201
    assert ask(server, "POST", path, b"a", Content_Type=TEXT, **page).status == 204
    assert ask(server, "DELETE", path, b"", **page).status == 204


@pytest.mark.parametrize(
    "path", ["/bucket", "/v1/stream/__ds/subscriptions/s", "/v1/stream/__ds/subscriptions/s/claim"]
)
def test_no_surface_is_left_out(server: ServerProcess, path: str) -> None:
    for method in ("PUT", "POST", "DELETE", "PATCH"):
        assert ask(server, method, path, b"{}", Origin=EVIL).status == 403, method


def test_a_page_of_another_origin_reads_nothing(server: ServerProcess, stream: str) -> None:
    """It is answered, as a link to the stream browser is; its browser keeps the answer from it."""
    ask(server, "PUT", stream, b"secret", Content_Type=TEXT)
    for method in ("GET", "HEAD", "OPTIONS"):
        answer = ask(server, method, stream, Origin=EVIL, Access_Control_Request_Method="PUT")
        assert answer.status in (200, 204)
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["cross-origin-resource-policy"] == "same-origin", "nor embeds it"


def test_one_setting_lets_pages_of_listed_origins_in(serve: Serve, stream: str) -> None:
    listed = "http://localhost:5173"
    server = serve(DS_HTTP__CORS_ORIGINS=listed)
    page = {"Origin": listed, "Sec-Fetch-Site": "same-site", "Content-Type": TEXT}
    for method, status in (("PUT", 201), ("POST", 204), ("GET", 200), ("DELETE", 204)):
        body = b"a" if method == "POST" else b""
        answer = ask(server, method, stream, body, **page)
        assert answer.status == status
        assert answer.headers["access-control-allow-origin"] == listed
    for other in (EVIL, "http://localhost:5174", "null"):
        assert ask(server, "PUT", stream, Origin=other).status == 403


def test_a_star_lets_every_page_in(serve: Serve, stream: str) -> None:
    server = serve(DS_HTTP__CORS_ORIGINS="*")
    page = {"Origin": EVIL, "Sec-Fetch-Site": "cross-site"}
    answer = ask(server, "PUT", stream, b"", **page)
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (201, "*")


def test_a_page_behind_a_proxy_is_of_the_host_that_its_client_used(
    serve: Serve, stream: str
) -> None:
    """Where there is no TLS a browser sends no Sec-Fetch-Site, and Host may be the proxy's word."""
    page = {"Origin": "http://streams.example", "X-Forwarded-Host": "streams.example"}
    stranger = serve()
    assert ask(stranger, "PUT", stream, b"", **page).status == 403, "nobody vouches for the header"
    trusting = serve(DS_SERVER__TRUSTED_PROXIES="loopback")
    assert ask(trusting, "PUT", stream, b"", **page).status == 201
    assert ask(trusting, "PUT", f"{stream}-2", b"", **(page | {"Origin": EVIL})).status == 403
    public = serve(DS_SERVER__PUBLIC_URL="https://streams.example")
    assert ask(public, "PUT", stream, Origin="https://streams.example").status == 201


def test_a_head_that_was_learned_with_a_page_does_not_stand_for_another_page(
    server: ServerProcess, stream: str
) -> None:
    own, other = {"Origin": "http://localhost"}, {"Origin": "http://localhosT.evil"}
    with RawConnection(server.port) as connection:
        connection.request("PUT", stream, b"", Content_Type=TEXT, **own)
        for _ in range(3):
            assert connection.request("POST", stream, b"a", Content_Type=TEXT, **own).status == 204
        assert connection.request("POST", stream, b"a", Content_Type=TEXT, **other).status == 403
    assert ask(server, "GET", stream).body == b"aaa"


def test_inside_another_application_hosts_are_that_application_s_matter() -> None:
    """It knows the listener; names that are listed hold there, too."""
    origins = ForwardedOrigins(None, ())
    loopback = Config()
    listed = Config(server=Server(allowed_hosts=("streams.example",)))
    host = b"other.example"
    assert access_of(loopback, origins, listens=True).host_refusal(host) is not None
    assert access_of(loopback, origins, listens=False).host_refusal(host) is None
    assert access_of(listed, origins, listens=False).host_refusal(host) is not None


# -- the pages of the stack ------------------------------------------------------------------------


def test_the_page_of_tables_answers_only_under_names_of_this_machine() -> None:
    with page_of_tables(HostRules()) as url:
        assert httpx.get(f"{url}/none").status_code == 404
        for host in ("evil.example", "evil.example:8081", "192.168.1.2"):
            answer = httpx.get(f"{url}/none", headers={"Host": host})
            assert answer.status_code == 421
    with page_of_tables(HostRules(["tables.example"])) as url:
        answer = httpx.get(f"{url}/none", headers={"Host": "tables.example"})
        assert answer.status_code == 404
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"


@contextmanager
def page_of_tables(rules: HostRules) -> Iterator[str]:
    with database_page.server(
        "postgresql://nobody@127.0.0.1:1/none", "127.0.0.1", 0, rules
    ) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["shapes", "--allowed-hosts", "https://a.example"], "--allowed-hosts https://a.example"),
        (["shapes", "--cors-origins", "a.example"], "--cors-origins a.example"),
        (["stack", "monitor", "--port", "1", "--allowed-hosts", "*,a"], "--allowed-hosts *,a"),
    ],
)
def test_a_bad_list_is_refused_in_a_sentence(command: list[str], words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli", *command],
        env={**os.environ, "POSTGRES_URL": "postgresql://nobody@127.0.0.1:1/none"},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_SECS,
    )
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr


ADMINER = Path(__file__).parent / ".adminer"


@pytest.fixture(scope="module")
def adminer_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Adminer as the stack serves it. It shows its form without a database."""
    found = adminer.find(ADMINER)
    if found is None:
        pytest.skip("no PHP and Adminer here, and apt could not fetch them")
    port = free_port()
    log = (tmp_path_factory.mktemp("adminer") / "php.log").open("wb")
    database = "postgresql://postgres:secret@127.0.0.1:54321/durable_streams"
    command = found.command("127.0.0.1", port)
    env = {**os.environ, **found.environment(postgres_url=database)}
    with log, subprocess.Popen(command, stdout=log, stderr=log, env=env) as process:
        eventually(lambda: is_listening(port), "PHP listens")
        yield f"http://127.0.0.1:{port}"
        process.terminate()


@pytest.mark.slow
def test_adminer_opens_on_the_stacks_database_without_its_password(adminer_url: str) -> None:
    form = httpx.get(f"{adminer_url}/", headers={"Accept": "text/html"}, follow_redirects=True)
    assert form.status_code == 403, "how Adminer says that a password is wanted"
    assert dict(form.url.params) == {
        "pgsql": "127.0.0.1:54321",
        "username": "postgres",
        "db": "durable_streams",
    }
    for field in ("127.0.0.1:54321", "postgres", "durable_streams"):
        assert f'value="{field}"' in form.text
    assert '<option value="pgsql" selected>' in form.text
    assert "secret" not in form.text
    other = httpx.get(f"{adminer_url}/?sqlite=", headers={"Accept": "text/html"})
    assert other.status_code == 200, "another choice stays"


@pytest.mark.slow
@pytest.mark.parametrize("host", [*FOREIGN_HOSTS, "::1", "localhost@evil.example"])
def test_a_rebound_page_does_not_get_adminer(adminer_url: str, host: str) -> None:
    answer = httpx.get(adminer_url, headers={"Host": host})
    assert (answer.status_code, "password" in answer.text.lower()) == (421, False)


@pytest.mark.slow
@pytest.mark.parametrize("host", OWN_HOSTS)
def test_adminer_is_there_under_every_name_of_this_machine(adminer_url: str, host: str) -> None:
    answer = httpx.get(adminer_url, headers={"Host": host})
    assert (answer.status_code, "password" in answer.text.lower()) == (200, True)


@pytest.mark.slow
@pytest.mark.parametrize("page", FOREIGN_PAGES, ids=str)
def test_a_page_of_another_origin_does_not_log_in_to_adminer(
    adminer_url: str, page: dict[str, str]
) -> None:
    login = {"auth[driver]": "pgsql", "auth[username]": "postgres", "auth[password]": "password"}
    headers = {"Host": "localhost", **page}
    assert httpx.post(adminer_url, data=login, headers=headers).status_code == 403
    assert httpx.get(adminer_url, headers=headers).status_code == 403, "nor embeds it"


@pytest.mark.slow
def test_a_link_leads_to_adminer_and_its_own_form_works(adminer_url: str) -> None:
    link = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    assert httpx.get(adminer_url, headers=link).status_code == 200
    assert httpx.post(adminer_url, headers=link).status_code == 403, "a form of another page"
    login = {"auth[driver]": "pgsql", "auth[server]": "127.0.0.1:1", "auth[username]": "x"}
    for own in ({"Origin": adminer_url}, {"Sec-Fetch-Site": "same-origin"}):
        answer = httpx.post(adminer_url, data=login, headers=own, follow_redirects=False)
        assert answer.status_code not in (403, 421)


# -- the server's own requests ---------------------------------------------------------------------


def webhook_to(url: str, *streams: str) -> dict[str, object]:
    return {"type": "webhook", "webhook": {"url": url}, "streams": list(streams)}


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_no_webhook_goes_to_this_machine_unless_the_operator_says_so(
    serve: Serve, host: str
) -> None:
    """Else whoever has a token may speak to everything that trusts this machine."""
    server = serve(DS_SERVER__HOST=host)
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as http:
        for url in (
            "http://127.0.0.1:9901/quitquitquit",
            "https://localhost:9901/",
            "http://[::1]",
        ):
            refused = Api(http).put("kill", **webhook_to(url, "s"))
            assert code(refused) == (400, "WEBHOOK_URL_REJECTED")
            assert "webhooks.allow_loopback = true" in refused.json()["detail"]


def test_a_webhook_is_judged_by_the_rules_of_the_day_it_is_sent(
    serve: Serve, tmp_path: Path
) -> None:
    """A subscription that was allowed once is kept, and sends nothing where it no longer may."""
    storage = {"DS_STORAGE__MODE": "file-durable", "DS_STORAGE__DATA_DIR": str(tmp_path / "data")}
    with Receiver() as receiver:
        server = serve(DS_WEBHOOKS__ALLOW_LOOPBACK="true", **storage)
        with httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as http:
            Api(http).create("s")
            assert Api(http).put("sub", **webhook_to(receiver.url, "s")).status_code == 201
        server.stop()
        strict = serve(**storage)
        with httpx.Client(base_url=strict.url, timeout=DEADLINE_SECS) as http:
            Api(http).append("s", {"n": 1})
            eventually(lambda: Api(http).get("sub")["status"] == "failed", "it is not delivered")
        assert receiver.count == 0
    assert any("webhooks.allow_loopback" in line for line in strict.log), strict.log


def test_a_repeated_put_does_not_move_where_callback_tokens_go(
    serve: Serve,
) -> None:
    server = serve(
        DS_SERVER__TRUSTED_PROXIES="loopback",
        DS_SERVER__ALLOWED_HOSTS="evil.example",
        DS_WEBHOOKS__ALLOW_LOOPBACK="true",
    )
    stolen = [
        {"Host": "evil.example"},
        {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https"},
        {"X-Forwarded-Proto": "https"},
    ]
    with httpx.Client(base_url=server.url) as http, Receiver() as receiver:
        api, config = Api(http), webhook_to(receiver.url, "s")
        api.create("s")
        assert api.put("sub", **config).status_code == 201
        before = api.get("sub")
        for headers in stolen:
            again = http.put(api.url("sub"), json=config, headers=headers)
            assert (again.status_code, again.json()) == (200, before)
        api.append("s", {"n": 1})
        assert receiver.next().body["callback_url"].startswith(f"{server.url}{ROOT}/__ds/")
        assert before["webhook"]["signing"]["jwks_url"].startswith(f"{server.url}{ROOT}/__ds/")


def test_the_operator_moves_callbacks_by_a_public_url(serve: Serve, tmp_path: Path) -> None:
    storage = {"DS_STORAGE__MODE": "file-durable", "DS_STORAGE__DATA_DIR": str(tmp_path / "data")}
    config = json.loads(json.dumps(webhook_to("https://worker.example/", "s")))
    server = serve(**storage)
    with httpx.Client(base_url=server.url) as http:
        assert Api(http).put("sub", **config).status_code == 201
    server.stop()
    moved = serve(DS_SERVER__PUBLIC_URL="https://streams.example", **storage)
    with httpx.Client(base_url=moved.url) as http:
        assert Api(http).put("sub", **config).status_code == 200
        signing = Api(http).get("sub")["webhook"]["signing"]
    assert signing["jwks_url"].startswith("https://streams.example/")
