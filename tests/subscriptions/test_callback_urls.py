"""Webhook targets: which URLs are taken, and where a name may lead."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.subscriptions.callback_urls import (
    AddressScope,
    TargetRules,
    WebhookTarget,
    check_addresses,
    parse_target,
    resolve,
    scope_of,
)
from headrace.subscriptions.errors import Code, SubscriptionRefused

STRICT = TargetRules()
LOOPBACK = TargetRules(allow_loopback=True)
PRIVATE = TargetRules(allow_private=True)
ALL = TargetRules(allow_loopback=True, allow_private=True)


def is_refused(url: str, rules: TargetRules) -> bool:
    try:
        parse_target(url, rules)
    except SubscriptionRefused as refusal:
        return refusal.code is Code.WEBHOOK_URL_REJECTED
    return False


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://worker.example/hooks", WebhookTarget("https", "worker.example", 443, "/hooks")),
        ("https://worker.example", WebhookTarget("https", "worker.example", 443, "/")),
        ("HTTPS://Worker.Example:8443/A", WebhookTarget("https", "worker.example", 8443, "/A")),
        ("https://worker.example?x=1", WebhookTarget("https", "worker.example", 443, "/?x=1")),
        ("https://w.example/a?b=c&d=%20", WebhookTarget("https", "w.example", 443, "/a?b=c&d=%20")),
        ("https://8.8.8.8/", WebhookTarget("https", "8.8.8.8", 443, "/")),
        ("https://[2606:4700::1111]:1/", WebhookTarget("https", "2606:4700::1111", 1, "/")),
        (
            "https://xn--bcher-kva.example/",
            WebhookTarget("https", "xn--bcher-kva.example", 443, "/"),
        ),
        ("https://a_b.example./", WebhookTarget("https", "a_b.example.", 443, "/")),
        ("https://user.example/@x", WebhookTarget("https", "user.example", 443, "/@x")),
    ],
)
def test_a_public_https_url_is_taken_apart(url: str, target: WebhookTarget) -> None:
    assert parse_target(url, STRICT) == target


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("https://w.example/", "w.example"),
        ("https://w.example:443/", "w.example"),
        ("https://w.example:80/", "w.example:80"),
        ("https://[2606:4700::1]:8443/", "[2606:4700::1]:8443"),
    ],
)
def test_the_host_header_keeps_the_name(url: str, authority: str) -> None:
    assert parse_target(url, STRICT).authority == authority


# Spellings that are refused whatever the operator allows: they are no plain URLs, need https, or
# lead to an address that is never one host's.
NEVER = [
    "http://worker.example/",
    "http://10.0.0.1/hook",
    "http://169.254.169.254/latest/meta-data/",
    "http://0.0.0.0/",
    "http://0/",
    "http://[::]/",
    "http://2130706433/",
    "http://017700000001/",
    "http://0x7f000001/",
    "http://0x7f.1/",
    "http://127.1/",
    "http://127.0.1/",
    "http://0177.0.0.1/",
    "http://127.0.0.1./",
    "http://127.0.0.01/",
    "http://0x7f.0x0.0x0.0x1/",
    "http://127.0.0.1.nip.io/",
    "http://localhost.evil.example/",
    "http://localhost@evil.example/",
    "http://evil.example#@localhost/",
    "http://evil.example\\@localhost/",
    "http://localhost%00.evil.example/",
    "http://localhost%2eevil.example/",
    "http://lоcalhost/",
    "http://①②⑦.⓪.⓪.①/",
    "http://127。0。0。1/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[0:0:0:0:0:ffff:127.0.0.1]/",
    "http://[::127.0.0.1]/",
    "http://[fe80::1%25eth0]/",
    "http://[::1",
    "http://::1/",
    "http://[127.0.0.1]/",
    "https://user@worker.example/",
    "https://user:secret@worker.example/",
    "https://@worker.example/",
    "https://worker.example@127.0.0.1/",
    "https://0.0.0.0/",
    "https://255.255.255.255/",
    "https://224.0.0.1/",
    "https://240.0.0.1/",
    "https://192.0.2.1/",
    "https://[::]/",
    "https://[ff02::1]/",
    "https://[2002:7f00:1::]/",
    "https://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/",
    "https://[64:ff9b::127.0.0.1]/",
    "https://[64:ff9b::10.0.0.1]/",
    "https://[::ffff:10.0.0.1]/",
    "https://[::ffff:8.8.8.8]/",
    "https://[2001:db8::1]/",
    "https://2130706433/",
    "https://1.2.3/",
    "https://1.2.3.4.5/",
    "https://1.2.3.256/",
    "https://0x8.8.8.8/",
    "https://8.8.8.8./",
    "https://worker.example:0/",
    "https://worker.example:65536/",
    "https://worker.example:99999999/",
    "https://worker.example:-1/",
    "https://worker.example:80:80/",
    "https://worker.example:/",
    "https:///hooks",
    "https://",
    "https:worker.example",
    "https:/worker.example/",
    "//worker.example/",
    "worker.example",
    "https://worker..example/",
    "https://.worker.example/",
    "https://-worker.example/",
    "https://worker.example/#fragment",
    "https://worker.example/a b",
    "https://worker.example/ü",
    "https://wörker.example/",
    "https://worker.example\\evil.example/",
    "https://worker%2eexample/",
    "ftp://worker.example/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/",
    "javascript:alert(1)",
]


@pytest.mark.parametrize("url", NEVER)
def test_a_url_that_hides_where_it_leads_is_never_taken(url: str) -> None:
    assert is_refused(url, ALL)


@pytest.mark.parametrize("character", ["\n", "\r", "\t", " ", "\x00", "\x7f", "\u2028", "\\"])
@pytest.mark.parametrize("place", [0, 5, 8, 12, 24, 28])
def test_no_control_character_passes_anywhere(character: str, place: int) -> None:
    url = "https://worker.example/hooks"
    assert is_refused(url[:place] + character + url[place:], ALL)


def test_a_url_has_a_bound() -> None:
    assert is_refused("https://worker.example/" + "a" * 2048, ALL)
    assert is_refused(f"https://{'a' * 64}.example/", ALL)
    assert is_refused(f"https://{'a.' * 127}example/", ALL)


LOOPBACK_URLS = [
    "http://localhost/",
    "http://LOCALHOST:8080/hook",
    "http://localhost./",
    "http://127.0.0.1:8080/",
    "http://127.255.255.254/",
    "http://[::1]:8080/",
    "http://[0:0:0:0:0:0:0:1]/",
    "https://localhost/",
    "https://sub.localhost/",
    "https://127.0.0.1/",
    "https://[::1]/",
]


@pytest.mark.parametrize("url", LOOPBACK_URLS)
def test_this_machine_is_reached_only_while_loopback_is_allowed(url: str) -> None:
    assert not is_refused(url, LOOPBACK)
    assert is_refused(url, STRICT)
    assert is_refused(url, PRIVATE)


@pytest.mark.parametrize(
    "host",
    [
        "10.0.0.1",
        "100.64.0.1",
        "100.127.255.255",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "198.18.0.1",
        "[fd00::1]",
        "[fec0::1]",
    ],
)
def test_a_private_address_is_reached_only_when_allowed_and_only_by_https(host: str) -> None:
    assert not is_refused(f"https://{host}/", PRIVATE)
    assert is_refused(f"https://{host}/", STRICT)
    assert is_refused(f"https://{host}/", LOOPBACK)
    assert is_refused(f"http://{host}/", ALL)


@pytest.mark.parametrize(
    "host",
    ["169.254.169.254", "169.254.0.1", "100.100.100.200", "[fe80::1]", "[fd00:ec2::254]"],
)
def test_where_clouds_hand_out_credentials_is_never_reached(host: str) -> None:
    assert is_refused(f"https://{host}/", ALL)
    assert is_refused(f"http://{host}/", ALL)


@pytest.mark.parametrize("host", ["172.15.255.255", "172.32.0.1", "100.128.0.1", "11.0.0.1"])
def test_a_neighbour_of_a_private_network_is_public(host: str) -> None:
    assert not is_refused(f"https://{host}/", STRICT)


@given(bits=st.integers(0, 2**32 - 1))
def test_no_ipv6_spelling_of_an_ipv4_address_reaches_more_than_the_address(bits: int) -> None:
    inner = scope_of(IPv4Address(bits))
    for prefix in (0x0, 0xFFFF << 32, 0x64FF9B << 96, 0x2002 << 112, 0x20010000 << 96):
        shift = 80 if prefix >> 112 == 0x2002 else 0
        outer = scope_of(IPv6Address(prefix | bits << shift))
        assert outer in (AddressScope.UNROUTABLE, inner) or IPv6Address(bits) == IPv6Address("::1")


@given(address=st.ip_addresses())
def test_what_python_calls_local_is_never_public_here(
    address: IPv4Address | IPv6Address,
) -> None:
    local = (
        address.is_private
        or address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
    )
    # Python takes a few anycast addresses of 192.0.0.0/24 and 2001::/23 for global: we do not.
    if local:
        assert scope_of(address) is not AddressScope.PUBLIC


PUBLIC_1, PUBLIC_2 = ip_address("93.184.216.34"), ip_address("2606:4700::1")
METADATA = ip_address("169.254.169.254")


def test_every_address_of_a_name_must_be_allowed() -> None:
    target = parse_target("https://worker.example/", STRICT)
    check_addresses(target, [PUBLIC_1, PUBLIC_2], STRICT)
    for addresses in ([METADATA], [PUBLIC_1, METADATA], [METADATA, PUBLIC_1]):
        with pytest.raises(SubscriptionRefused):
            check_addresses(target, addresses, STRICT)


def test_http_to_localhost_goes_nowhere_else_even_if_the_name_does() -> None:
    target = parse_target("http://localhost/", ALL)
    check_addresses(target, [ip_address("127.0.0.1"), ip_address("::1")], ALL)
    for address in ("10.0.0.1", "93.184.216.34"):
        with pytest.raises(SubscriptionRefused):
            check_addresses(target, [ip_address(address)], ALL)


def test_a_name_is_resolved_and_its_addresses_are_checked() -> None:
    """`localhost` is a name that resolves everywhere, and to what only some may reach."""
    target = WebhookTarget("https", "localhost", 443, "/")

    async def addresses(rules: TargetRules) -> list[str]:
        return [str(a) for a in await resolve(target, rules, asyncio.get_running_loop())]

    found = asyncio.run(addresses(LOOPBACK))
    assert found
    assert set(found) <= {"127.0.0.1", "::1"}
    with pytest.raises(SubscriptionRefused, match="this machine"):
        asyncio.run(addresses(STRICT))


def test_a_name_that_does_not_exist_is_an_error_of_the_resolver() -> None:
    target = parse_target("https://does-not-exist.invalid/", STRICT)

    async def look_up() -> None:
        await resolve(target, STRICT, asyncio.get_running_loop())

    with pytest.raises(socket.gaierror):
        asyncio.run(look_up())
