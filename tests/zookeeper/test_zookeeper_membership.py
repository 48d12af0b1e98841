"""The settings of a group in ZooKeeper: what the constructor refuses."""

from __future__ import annotations

from typing import Any

import pytest

from kafkagroup import ConfigurationError, ZooKeeperMembership


@pytest.mark.parametrize("hosts", ["", ",", "/chroot", "zk:x", "zk:65536", "zk:2181,", "a,,b"])
def test_addresses_that_kazoo_cannot_parse_are_refused(hosts: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ZooKeeperMembership(hosts)
    assert str(caught.value) == f"hosts={hosts!r}; expected 'host:port,...'"


@pytest.mark.parametrize("hosts", ["zk", "a:1,b:2", "[::1]:2181", "a, b/chroot"])
def test_addresses_that_kazoo_can_parse_are_accepted(hosts: str) -> None:
    assert ZooKeeperMembership(hosts).hosts == hosts


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("hosts", 5, "hosts is of type int; expected a string"),
        ("session_timeout_ms", "9", "session_timeout_ms is of type str; expected a number"),
        ("root", 5, "root is of type int; expected a string"),
        ("security", {}, "security is of type dict; expected kafkagroup.Security(...) or None"),
        ("username", b"me", "username is of type bytes; expected a string"),
        ("password", b"hush", "password is of type bytes; expected a string"),
        ("acl", 5, "acl is of type int; expected a list of kazoo's ACLs"),
        (
            "allow_plaintext_credentials",
            "false",
            "allow_plaintext_credentials is of type str; expected True or False",
        ),
        ("foreign_members", 5, "foreign_members=5; expected paths such as ['/consumers/billing/"),
        ("foreign_members", [5], "foreign_members=[5]; expected paths such as ['/consumers/billi"),
    ],
)
def test_values_of_another_type_are_refused(name: str, value: Any, message: str) -> None:
    given: dict[str, Any] = {"hosts": "zk", "username": "me", "password": "hush", name: value}
    with pytest.raises(ConfigurationError) as caught:
        ZooKeeperMembership(**given)
    assert str(caught.value).startswith(message)
