"""Sending webhooks: to the address that was checked, within bounds, and trusting nothing."""

from __future__ import annotations

import asyncio
import datetime
import errno
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar, cast

import h11
import httpcore
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from headrace.subscriptions.callback_urls import Address, TargetRules
from headrace.subscriptions.delivery import (
    ADDRESS_POSTS_MAX,
    HOST_SENDS_MAX,
    NEW_HOST_SENDS_MAX,
    REPEATS_MAX,
    SENDS_MAX,
    UNPROVEN_ADDRESS_POSTS_MAX,
    UNPROVEN_POSTS_MAX,
    Delivered,
    Deliveries,
    Failed,
    LazySender,
    Outgoing,
    Sender,
)
from headrace.subscriptions.webhook_intake import ANSWER_BYTES_MAX, TURN_BYTES
from headrace.subscriptions.webhook_sender import WebhookSender
from headrace.testing.ports import free_port
from headrace.testing.waiting import DEADLINE_SECS
from tests.subscriptions.receiver import ACCEPTED, DONE, Receiver, Reply, Webhook

LOOPBACK = TargetRules(allow_loopback=True)
T = TypeVar("T")


def outgoing(url: str, timeout_secs: float = DEADLINE_SECS) -> Outgoing:
    return Outgoing("w_1", url, "t=1,kid=k,ed25519=s", b'{"wake": 1}', timeout_secs)


def test_a_client_that_cannot_be_loaded_fails_the_delivery_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(name: str) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    sender = LazySender(LOOPBACK)
    webhook = outgoing("http://localhost:1/")
    with monkeypatch.context() as patched:
        patched.setattr("headrace.subscriptions.delivery.import_module", load)
        failed = asyncio.run(sender.post(webhook))
    assert isinstance(failed, Failed)
    assert "Too many open files" in failed.reason
    assert "Connect" in cast(Failed, asyncio.run(sender.post(webhook))).reason


def post(url: str, *, rules: TargetRules = LOOPBACK, timeout_secs: float = DEADLINE_SECS) -> Any:
    return asyncio.run(WebhookSender(rules).post(outgoing(url, timeout_secs)))


def reason(result: Delivered | Failed) -> str:
    assert isinstance(result, Failed), result
    return result.reason


class ResolvingLoop(asyncio.SelectorEventLoop):
    """An event loop whose names resolve to what a test says, one answer per lookup."""

    def __init__(self, *answers: list[str]) -> None:
        super().__init__()
        self.answers = list(answers)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        addresses = self.answers.pop(0)
        families = {4: socket.AF_INET, 6: socket.AF_INET6}
        return [
            (families[ip_address(a).version], socket.SOCK_STREAM, 6, "", (a, port))
            for a in addresses
        ]


def run_with_names(work: Awaitable[T], *answers: list[str]) -> T:
    async def main() -> T:
        return await work

    with asyncio.Runner(loop_factory=lambda: ResolvingLoop(*answers)) as runner:
        return runner.run(main())


# -- one request -----------------------------------------------------------------------------------


def test_the_request_is_the_body_as_given_with_its_signature() -> None:
    with Receiver() as receiver:
        assert post(receiver.url + "?key=a%20b") == Delivered(done=False)
        webhook = receiver.next()
    assert webhook.path == "/hook?key=a%20b"
    assert webhook.raw == b'{"wake": 1}'
    assert webhook.headers["content-type"] == "application/json"
    assert webhook.headers["webhook-signature"] == "t=1,kid=k,ed25519=s"
    assert webhook.headers["host"] == f"127.0.0.1:{receiver.port}"


@pytest.mark.parametrize(
    ("reply", "done"),
    [
        (DONE, True),
        (Reply(202, b'{"done":true,"more":1}'), True),
        (Reply(204, b""), False),
        (Reply(200, b'{"done":false}'), False),
        (Reply(200, b'{"done":"true"}'), False),
        (Reply(200, b'{"done":1}'), False),
        (Reply(200, b"[true]"), False),
        (Reply(200, b"not json \xff"), False),
        (Reply(200, b'{"done":true}' + b" " * ANSWER_BYTES_MAX), False),
    ],
)
def test_only_done_true_is_done(reply: Reply, done: bool) -> None:
    with Receiver(reply) as receiver:
        assert post(receiver.url) == Delivered(done)


@pytest.mark.parametrize("status", [301, 307, 400, 404, 410, 429, 500, 503])
def test_any_other_status_is_a_failure(status: int) -> None:
    with Receiver(Reply(status, b'{"done": true}')) as receiver:
        assert str(status) in reason(post(receiver.url))


def test_a_redirect_is_not_followed() -> None:
    with Receiver() as inner, Receiver(Reply(307, b"", (("Location", inner.url),))) as outer:
        assert "307" in reason(post(outer.url))
        assert inner.count == 0


def test_no_cookie_is_kept() -> None:
    async def twice(url: str) -> None:
        sender = WebhookSender(LOOPBACK)
        for _ in range(2):
            await sender.post(outgoing(url))

    with Receiver(Reply(200, b"", (("Set-Cookie", "a=1"),))) as receiver:
        asyncio.run(twice(receiver.url))
        receiver.next()
        assert "cookie" not in receiver.next().headers


def test_proxy_settings_of_the_environment_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    with Receiver() as receiver:
        assert post(receiver.url) == Delivered(done=False)


def test_a_receiver_that_does_not_answer_is_given_up() -> None:
    release = threading.Event()

    def wait(_: Webhook) -> Reply:
        release.wait(DEADLINE_SECS)
        return ACCEPTED

    with Receiver(wait) as receiver:
        assert "within 0.2 s" in reason(post(receiver.url, timeout_secs=0.2))
        release.set()


def test_an_endless_answer_is_cut_off() -> None:
    """The receiver sends for ever; the sender stops reading at its bound."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        first, repeated = b"HTTP/1.1 200 OK\r\n\r\n", b" " * 65536
        sent = threading.Thread(target=_send_endlessly, args=(listener, first, repeated))
        sent.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        assert post(url) == Delivered(done=False)
        sent.join(DEADLINE_SECS)
        assert not sent.is_alive()


def _send_endlessly(listener: socket.socket, first: bytes, repeated: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(65536)
        try:
            connection.sendall(first)
            while True:
                connection.sendall(repeated)
        except OSError:
            return


def _answer_once(listener: socket.socket, answer: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(answer)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("first", "repeated", "why"),
    [
        (CHUNKED, b"1\r\n \r\n", "more than 1000 pieces"),
        (CHUNKED, b"1;" + b"e" * 200 + b"\r\n \r\n", "more than 96 KiB"),
        (CHUNKED + b"0\r\n", b"t: 1\r\n", "16 KiB of header or trailer"),
        (b"HTTP/1.1 200 OK\r\n", b"h: 1\r\n", "16 KiB of header or trailer"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", "more than 8 interim (1xx) responses"),
        (b"", b"HTTP/1.1 103 Early Hints\r\nl: 1\r\n\r\n", "more than 8 interim (1xx) responses"),
    ],
)
def test_an_answer_that_costs_too_much_to_parse_fails_the_delivery(
    first: bytes, repeated: bytes, why: str
) -> None:
    """What counts is what the parser is given, and that others have the loop in between."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sent = threading.Thread(target=_send_endlessly, args=(listener, first, repeated * 5000))
        sent.start()
        result, most_per_turn = asyncio.run(
            post_counting_events(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        )
        assert why in reason(result)
        assert most_per_turn <= TURN_BYTES // len(b"1\r\n \r\n") + 2
        sent.join(DEADLINE_SECS)
        assert not sent.is_alive()


async def post_counting_events(url: str) -> tuple[Delivered | Failed, int]:
    """The result, and the most events that the HTTP parser found in one turn of the loop."""
    turns: Counter[int] = Counter()
    turn = 0

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def count_event(connection: h11.Connection) -> Any:
        turns[turn] += 1
        return next_event(connection)

    next_event = h11.Connection.next_event
    ticker = asyncio.create_task(count_turns())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(h11.Connection, "next_event", count_event)
        result = await WebhookSender(LOOPBACK).post(outgoing(url))
    ticker.cancel()
    return result, max(turns.values())


def test_a_few_interim_responses_are_passed_over() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
    final = b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"done": true}'
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sent = threading.Thread(target=_answer_once, args=(listener, interim * 8 + final))
        sent.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        assert post(url) == Delivered(done=True)
        sent.join(DEADLINE_SECS)


@pytest.mark.parametrize(
    "answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9"]
)
def test_an_answer_that_is_not_http_is_a_failure(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_answer_once, args=(listener, answer))
        thread.start()
        assert reason(post(f"http://127.0.0.1:{listener.getsockname()[1]}/"))
        thread.join(DEADLINE_SECS)


def test_a_closed_port_and_an_unknown_name_are_failures() -> None:
    assert reason(post(f"http://127.0.0.1:{free_port()}/"))
    assert reason(post("https://does-not-exist.invalid/"))


# -- where it goes -----------------------------------------------------------------------------


def test_a_url_that_the_rules_refuse_is_not_sent_even_if_it_was_taken_once() -> None:
    with Receiver() as receiver:
        assert "this machine" in reason(post(receiver.url, rules=TargetRules()))
        assert receiver.count == 0


def test_a_name_that_leads_inside_is_not_sent() -> None:
    with Receiver() as receiver:
        work = WebhookSender(TargetRules()).post(
            outgoing(f"https://worker.example:{receiver.port}/")
        )
        assert "this machine" in reason(run_with_names(work, ["127.0.0.1"]))
        assert receiver.count == 0


def test_one_bad_address_among_good_ones_stops_everything() -> None:
    with Receiver() as receiver:
        work = WebhookSender(LOOPBACK).post(outgoing(f"http://localhost:{receiver.port}/"))
        assert "10.0.0.1" in reason(run_with_names(work, ["127.0.0.1", "10.0.0.1"]))
        assert receiver.count == 0


def test_the_name_is_looked_up_once_so_it_cannot_change_after_the_check() -> None:
    """A second lookup would find no answer prepared, and a third party's in real life."""
    with Receiver() as receiver:
        work = WebhookSender(LOOPBACK).post(outgoing(f"http://localhost:{receiver.port}/"))
        assert run_with_names(work, ["127.0.0.1"]) == Delivered(done=False)
        assert receiver.next().headers["host"] == f"localhost:{receiver.port}"


def test_the_next_address_is_tried_when_one_is_dead() -> None:
    with Receiver() as receiver:
        work = WebhookSender(LOOPBACK).post(outgoing(f"http://localhost:{receiver.port}/"))
        answer = ["127.0.0.2", "::1", "127.0.0.1"]
        assert run_with_names(work, answer) == Delivered(done=False)


# -- TLS ---------------------------------------------------------------------------------------


def certificate(folder: Path, name: str) -> Path:
    """A self-signed certificate for `name`, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


def tls_server(path: Path, names: list[str | None]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    context.sni_callback = lambda _, name, __: names.append(name)
    return context


@pytest.mark.parametrize(
    ("name", "delivered"), [("worker.example", True), ("other.example", False)]
)
def test_the_certificate_must_be_for_the_name_though_the_address_is_dialled(
    tmp_path: Path, name: str, delivered: bool
) -> None:
    path = certificate(tmp_path, name)
    asked: list[str | None] = []
    trusting = ssl.create_default_context(cafile=str(path))
    with Receiver(tls=tls_server(path, asked)) as receiver:
        url = f"https://worker.example:{receiver.port}/"
        work = WebhookSender(LOOPBACK, trusting).post(outgoing(url))
        result = run_with_names(work, ["127.0.0.1"])
        if delivered:
            assert result == Delivered(done=False)
            assert receiver.next().headers["host"] == f"worker.example:{receiver.port}"
        else:
            assert "certificate" in reason(result).lower()
    assert asked == ["worker.example"]


def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    path = certificate(tmp_path, "localhost")
    with Receiver(tls=tls_server(path, [])) as receiver:
        result = post(f"https://localhost:{receiver.port}/")
        assert "certificate" in reason(result).lower()
        assert receiver.count == 0


# -- many requests -----------------------------------------------------------------------------


class Gate:
    """A receiver's reply that waits to be let through, and counts who waits."""

    def __init__(self) -> None:
        self.open = threading.Semaphore(0)
        self.waiting = 0
        self.most = 0
        self._lock = threading.Lock()

    def __call__(self, _: Webhook) -> Reply:
        with self._lock:
            self.waiting += 1
            self.most = max(self.most, self.waiting)
        assert self.open.acquire(timeout=DEADLINE_SECS)
        with self._lock:
            self.waiting -= 1
        return ACCEPTED


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(DEADLINE_SECS):
        while not condition():
            await asyncio.sleep(0.005)
    assert condition(), what


def address_of_its_own(host: str) -> Address:
    return ip_address(0x0A000000 + int(host))


class Spread:
    """Hosts with an address each, as far as anybody asks; the webhooks go where their URLs say."""

    def __init__(self) -> None:
        self._sender = WebhookSender(LOOPBACK)

    async def addresses(self, host: str) -> Sequence[Address]:
        return [address_of_its_own(host)]

    async def post(
        self, outgoing: Outgoing, addresses: Sequence[Address] = ()
    ) -> Delivered | Failed:
        return await self._sender.post(outgoing)


class OneAddress(Spread):
    """Hosts that are all names of one receiver."""

    async def addresses(self, host: str) -> Sequence[Address]:
        return [ip_address("192.0.2.1")]


class Sending:
    """A running Deliveries over keys that all go to one receiver, as if each to a host of its own.

    `hosts` is how many there are; None is as many as keys.
    """

    def __init__(self, url: str, hosts: int | None = None, sender: Sender | None = None) -> None:
        self.finished: list[int] = []
        self.failed: list[int] = []
        self.nothing_to_send: set[int] = set()
        self.defects: list[int] = []
        self.deliveries: Deliveries[int] = Deliveries(
            sender or Spread(),
            self._prepare,
            self._finish,
            lambda key: str(key % hosts if hosts else key),
            self.defects.append,
        )
        self._url = url

    def _prepare(self, key: int) -> Outgoing | None:
        return None if key in self.nothing_to_send else outgoing(f"{self._url}/{key}")

    def _finish(self, key: int, _: Outgoing, result: Delivered | Failed) -> None:
        (self.failed if isinstance(result, Failed) else self.finished).append(key)

    async def settled(self) -> None:
        """Until what could be begun has been."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def __aenter__(self) -> Sending:
        self._task = asyncio.create_task(self.deliveries.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        assert self._task.cancelled()


def test_no_more_than_the_bound_are_sent_at_once_and_repeats_take_half() -> None:
    async def main(receiver: Receiver, gate: Gate) -> None:
        async with Sending(receiver.url) as sending:
            await prove(sending, gate, receiver, range(SENDS_MAX))
            repeats = range(1000, 1000 + SENDS_MAX)
            for key in repeats:
                sending.deliveries.enqueue(key, repeat=True)
            await until(lambda: gate.waiting == REPEATS_MAX, "half are repeats")
            for key in range(SENDS_MAX):
                sending.deliveries.enqueue(key, repeat=False)
            await until(lambda: gate.waiting == SENDS_MAX, "the rest is new")
            arrived = [int(receiver.next().path.rpartition("/")[2]) for _ in range(SENDS_MAX)]
            assert sum(key >= 1000 for key in arrived) == REPEATS_MAX
            gate.open.release(2 * SENDS_MAX)
            await until(lambda: len(sending.finished) == 2 * SENDS_MAX, "all are sent")
            assert sorted(sending.finished) == [*range(SENDS_MAX), *repeats]

    gate = Gate()
    with Receiver(gate) as receiver:
        asyncio.run(main(receiver, gate))
    assert gate.most == SENDS_MAX


async def prove(sending: Sending, gate: Gate, receiver: Receiver, keys: range) -> None:
    """One delivery to each host, so that all are known to answer."""
    gate.open.release(len(keys))
    for key in keys:
        sending.deliveries.enqueue(key, repeat=False)
    await until(lambda: len(sending.finished) == len(keys), "each has answered")
    for _ in keys:
        receiver.next()
    sending.finished.clear()


def test_a_host_that_is_new_has_few_places_and_one_that_answered_half_of_them() -> None:
    async def main(receiver: Receiver, gate: Gate) -> None:
        async with Sending(receiver.url, hosts=1) as sending:
            for key in range(SENDS_MAX):
                sending.deliveries.enqueue(key, repeat=False)
            await until(lambda: gate.waiting == NEW_HOST_SENDS_MAX, "few at first")
            gate.open.release(NEW_HOST_SENDS_MAX)
            await until(lambda: gate.waiting == HOST_SENDS_MAX, "half of all afterwards")
            gate.open.release(SENDS_MAX)
            await until(lambda: len(sending.finished) == SENDS_MAX, "all are sent")

    gate = Gate()
    with Receiver(gate) as receiver:
        asyncio.run(main(receiver, gate))
    assert gate.most == HOST_SENDS_MAX


class Tarpits:
    """A sender whose odd hosts never answer, and which notes what it was given."""

    def __init__(self, address_of: Callable[[str], Address] = address_of_its_own) -> None:
        self._address_of = address_of
        self.posted: list[int] = []
        self.stuck: dict[int, asyncio.Future[Delivered | Failed]] = {}

    async def addresses(self, host: str) -> Sequence[Address]:
        return [self._address_of(host)]

    async def post(
        self, outgoing: Outgoing, addresses: Sequence[Address] = ()
    ) -> Delivered | Failed:
        key = int(outgoing.url.rpartition("/")[2])
        self.posted.append(key)
        if key % 2 == 0:
            return Delivered(done=False)
        self.stuck[key] = asyncio.get_running_loop().create_future()
        try:
            return await self.stuck[key]
        finally:
            del self.stuck[key]


def test_a_host_that_does_not_answer_does_not_hold_up_another() -> None:
    async def main() -> None:
        sender = Tarpits()
        async with Sending("http://h", hosts=2, sender=sender) as sending:
            for key in range(1, 241, 2):
                sending.deliveries.enqueue(key, repeat=False)
            await until(lambda: len(sender.stuck) == NEW_HOST_SENDS_MAX, "some wait for it")
            for key in range(0, 40, 2):
                sending.deliveries.enqueue(key, repeat=False)
            await until(lambda: len(sending.finished) == 20, "the other is served")
            assert len(sender.posted) == NEW_HOST_SENDS_MAX + 20

    asyncio.run(main())


def test_hosts_that_keep_failing_have_one_place_each() -> None:
    async def main() -> None:
        sender = Tarpits()
        async with Sending("http://h", hosts=2, sender=sender) as sending:
            for key in range(1, 81, 2):
                sending.deliveries.enqueue(key, repeat=False)
            await until(lambda: len(sender.stuck) == NEW_HOST_SENDS_MAX, "few at first")
            for waiting in list(sender.stuck.values()):
                waiting.set_result(Failed("no answer"))
            await until(lambda: len(sender.stuck) == 1, "one at a time from then on")
            assert len(sender.posted) == NEW_HOST_SENDS_MAX + 1
            assert len(sending.failed) == NEW_HOST_SENDS_MAX

    asyncio.run(main())


def test_hosts_that_answered_have_places_that_new_hosts_cannot_take() -> None:
    async def main() -> None:
        sender = Tarpits()
        async with Sending("http://h", sender=sender) as sending:
            sending.deliveries.enqueue(2, repeat=False)
            await until(lambda: sending.finished == [2], "it answers")
            for key in range(1, 241, 2):
                sending.deliveries.enqueue(key, repeat=False)
            await until(lambda: len(sender.stuck) == UNPROVEN_POSTS_MAX, "120 hosts are stuck")
            sending.deliveries.enqueue(2, repeat=False)
            await until(lambda: sending.finished == [2, 2], "the one that answers is served")

    asyncio.run(main())


def test_a_subscription_waits_for_its_own_last_request() -> None:
    async def main(receiver: Receiver, gate: Gate) -> None:
        async with Sending(receiver.url) as sending:
            sending.deliveries.enqueue(1, repeat=False)
            await until(lambda: gate.waiting == 1, "the first is sent")
            sending.deliveries.enqueue(1, repeat=False)
            sending.deliveries.enqueue(2, repeat=False)
            await until(lambda: gate.waiting == 2, "another's is sent")
            assert {receiver.next().path, receiver.next().path} == {"/hook/1", "/hook/2"}
            assert receiver.count == 0
            gate.open.release(3)
            await until(lambda: sorted(sending.finished) == [1, 1, 2], "then the second")

    gate = Gate()
    with Receiver(gate) as receiver:
        asyncio.run(main(receiver, gate))


def test_what_is_dropped_is_not_sent_or_broken_off() -> None:
    async def main(receiver: Receiver, gate: Gate) -> None:
        async with Sending(receiver.url) as sending:
            sending.deliveries.enqueue(1, repeat=False)
            await until(lambda: gate.waiting == 1, "it is being sent")
            sending.deliveries.enqueue(1, repeat=False)
            sending.deliveries.enqueue(2, repeat=True)
            sending.deliveries.drop(1)
            sending.deliveries.drop(2)
            gate.open.release(3)
            sending.deliveries.enqueue(3, repeat=False)
            await until(lambda: sending.finished == [3], "only what was not dropped")

    gate = Gate()
    with Receiver(gate) as receiver:
        asyncio.run(main(receiver, gate))
        assert {receiver.next().path, receiver.next().path} == {"/hook/1", "/hook/3"}
        assert receiver.count == 0


def test_a_turn_with_nothing_to_send_is_passed_on() -> None:
    async def main(receiver: Receiver) -> None:
        async with Sending(receiver.url) as sending:
            sending.nothing_to_send = set(range(100))
            for key in range(101):
                sending.deliveries.enqueue(key, repeat=False)
            await until(lambda: sending.finished == [100], "the one with something to send")

    with Receiver() as receiver:
        asyncio.run(main(receiver))


@pytest.mark.parametrize("where", ["prepare", "finish"])
def test_a_defect_concerns_one_subscription_and_the_others_are_served(where: str) -> None:
    class Failing(Sending):
        def _prepare(self, key: int) -> Outgoing | None:
            if (where, key) == ("prepare", 1):
                raise ZeroDivisionError
            return super()._prepare(key)

        def _finish(self, key: int, sent: Outgoing, result: Delivered | Failed) -> None:
            if (where, key) == ("finish", 1):
                raise ZeroDivisionError
            super()._finish(key, sent, result)

    async def main(receiver: Receiver) -> None:
        async with Failing(receiver.url) as sending:
            for key in (0, 1, 2):
                sending.deliveries.enqueue(key, repeat=False)
            await until(lambda: sorted(sending.finished) == [0, 2], "the others are sent")
            await until(lambda: sending.defects == [1], "the one is reported")

    with Receiver() as receiver:
        asyncio.run(main(receiver))


def test_many_names_of_one_receiver_do_not_take_all_places_of_new_hosts() -> None:
    """A wildcard in the DNS gives a tarpit as many names as it likes."""

    def address_of(host: str) -> Address:
        return ip_address("192.0.2.1") if int(host) % 2 else address_of_its_own(host)

    async def main() -> None:
        sender = Tarpits(address_of)
        async with Sending("http://h", sender=sender) as sending:
            for key in range(1, 241, 2):
                sending.deliveries.enqueue(key, repeat=False)
            await until(lambda: len(sender.stuck) == UNPROVEN_ADDRESS_POSTS_MAX, "some wait")
            for key in range(0, 80, 2):
                sending.deliveries.enqueue(key, repeat=False)
            await until(lambda: len(sending.finished) == 40, "new hosts elsewhere are served")
            assert len(sender.stuck) == UNPROVEN_ADDRESS_POSTS_MAX

    asyncio.run(main())


def test_addresses_of_one_ipv6_network_count_as_one_receiver() -> None:
    def address_of(host: str) -> Address:
        return ip_address(f"2001:db8::{int(host):x}")

    async def main() -> None:
        sender = Tarpits(address_of)
        async with Sending("http://h", sender=sender) as sending:
            for key in range(1, 241, 2):
                sending.deliveries.enqueue(key, repeat=False)
            await until(lambda: len(sender.stuck) == UNPROVEN_ADDRESS_POSTS_MAX, "some wait")
            await sending.settled()
            assert len(sender.stuck) == UNPROVEN_ADDRESS_POSTS_MAX

    asyncio.run(main())


def test_a_receiver_that_answered_under_many_names_has_half_of_all_places() -> None:
    async def main(receiver: Receiver, gate: Gate) -> None:
        async with Sending(receiver.url, sender=OneAddress()) as sending:
            await prove(sending, gate, receiver, range(SENDS_MAX))
            for key in range(SENDS_MAX):
                sending.deliveries.enqueue(key, repeat=False)
            await until(lambda: gate.waiting == ADDRESS_POSTS_MAX, "half of all places")
            gate.open.release(SENDS_MAX)
            await until(lambda: len(sending.finished) == SENDS_MAX, "all are sent")

    gate = Gate()
    with Receiver(gate) as receiver:
        asyncio.run(main(receiver, gate))
    assert gate.most == ADDRESS_POSTS_MAX


def test_what_was_looked_up_is_what_is_connected_to() -> None:
    """A name that leads elsewhere a moment later gains nothing."""

    async def main(receiver: Receiver) -> None:
        deliveries: Deliveries[int]
        finished: list[Delivered | Failed] = []
        deliveries = Deliveries(
            WebhookSender(LOOPBACK),
            lambda _: outgoing(f"http://localhost:{receiver.port}/"),
            lambda _, __, result: finished.append(result),
            lambda _: f"http://localhost:{receiver.port}",
            lambda key: pytest.fail(str(key)),
        )
        deliveries.enqueue(1, repeat=False)
        task = asyncio.create_task(deliveries.run())
        await until(lambda: bool(finished), "it is sent")
        task.cancel()
        await asyncio.wait([task])
        assert finished == [Delivered(done=False)]

    loop = ResolvingLoop(["127.0.0.1"], ["192.0.2.1"])
    with Receiver() as receiver:
        asyncio.set_event_loop(None)
        loop.run_until_complete(main(receiver))
        loop.close()
    assert loop.answers == [["192.0.2.1"]]


def test_whatever_the_http_library_raises_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that hangs up while it is connected to has been seen to raise AttributeError."""

    async def raise_something(*_: object) -> httpcore.Response:
        raise AttributeError("'NoneType' object has no attribute 'getpeername'")

    monkeypatch.setattr(httpcore.AsyncConnectionPool, "handle_async_request", raise_something)
    assert "getpeername" in reason(post("http://127.0.0.1:9/"))
