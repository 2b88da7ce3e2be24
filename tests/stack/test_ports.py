"""Ports come from the port map and move, with a message, when they are taken."""

from __future__ import annotations

import socket

import pytest

from headrace.stack.ports import FREE_RANGE, PORT_MAP, NoFreePort, Ports


def test_the_map_is_the_reference_s() -> None:
    reference = {"server": 4437, "envoy": 8080, "envoy-stats": 9901, "postgres": 54321}
    reference |= {"adminer": 8081, "ui": 3000}
    assert reference.items() <= PORT_MAP.items()
    assert len(set(PORT_MAP.values())) == len(PORT_MAP)


def test_a_taken_port_moves_with_a_message() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        ports = Ports({"server": number})
        given = ports.give("server")
    assert given != number
    assert ports.messages == [f"Port {number} is taken: server listens on {given} instead."]
    assert ports.give("server") == given


def test_a_port_taken_on_every_address_is_taken_here_too() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        number = taken.getsockname()[1]
        assert Ports({"server": number}).give("server") != number


def test_a_moved_port_does_not_take_another_part_s() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        ports = Ports({"server": number, "envoy": number + 1})
        assert ports.give("server") not in (number, number + 1)


def test_any_free_port_is_below_those_of_outgoing_connections() -> None:
    ports = Ports(any_free=True)
    given = {ports.give(name) for name in PORT_MAP}
    assert len(given) == len(PORT_MAP)
    assert all(port in FREE_RANGE for port in given)
    assert ports.messages == []


def test_no_free_port_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        if taken.getsockname()[1] != 65_535:
            taken.close()
            with socket.socket() as last:
                last.bind(("127.0.0.1", 65_535))
                last.listen()
                with pytest.raises(NoFreePort, match="65535"):
                    Ports({"server": 65_535}).give("server")
