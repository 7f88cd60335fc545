"""Ports that are kept for several processes, and names by which others reach a host."""

from __future__ import annotations

import socket

import pytest

from pawl_server.ports import AddressInUse, Reservation, join, probe, reachable


def listen(port: int, *, shared: bool) -> socket.socket:
    """A listener on the port."""
    one = socket.socket()
    if shared:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.bind(("127.0.0.1", port))
    one.listen()
    return one


def test_a_reserved_port_is_for_those_who_share_it() -> None:
    kept = Reservation("127.0.0.1", 0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", kept.port))
    with pytest.raises(OSError, match="in use"):
        listen(kept.port, shared=False)
    with listen(kept.port, shared=True), socket.create_connection(("127.0.0.1", kept.port)):
        pass
    kept.close()


def test_a_reserved_port_is_given_back() -> None:
    kept = Reservation("localhost", 0)
    kept.close()
    probe("127.0.0.1", kept.port)
    Reservation("127.0.0.1", kept.port).close()


def test_a_port_that_others_have_is_not_reserved() -> None:
    for shared in (False, True):
        with listen(0, shared=shared) as other:
            port = other.getsockname()[1]
            with pytest.raises(AddressInUse, match=f"another program listens on 127.0.0.1:{port}; stop it"):
                Reservation("127.0.0.1", port)


def test_an_address_that_is_not_ours() -> None:
    with pytest.raises(AddressInUse, match=r"can't listen on 192\.0\.2\.1:1"):
        Reservation("192.0.2.1", 1)


def test_names_by_which_others_reach_a_host() -> None:
    assert reachable("127.0.0.1") == "127.0.0.1"
    assert reachable("server.example") == "server.example"
    for wildcard in ("0.0.0.0", "::", ""):
        assert reachable(wildcard) not in ("0.0.0.0", "::")


def test_addresses_of_both_families() -> None:
    assert (join("127.0.0.1", 1), join("::1", 2)) == ("127.0.0.1:1", "[::1]:2")
