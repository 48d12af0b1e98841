"""`ZooKeeperMembership`: the settings of a group whose members are in ZooKeeper, as a value."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from importlib import import_module
from types import NoneType
from typing import TYPE_CHECKING
from urllib.parse import quote

import attrs

from kafkagroup._foreign_options import explains_unknown_options
from kafkagroup._public import public
from kafkagroup._values import evolve
from kafkagroup.errors import ConfigurationError
from kafkagroup.member.config import MemberConfig
from kafkagroup.member.zookeeper_nodes import Paths
from kafkagroup.member.zookeeper_state import Member
from kafkagroup.runtime.member.interfaces import Application, MemberFactory
from kafkagroup.runtime.member.loop_delay import LoopDelay
from kafkagroup.runtime.member.membership_log import MembershipLog
from kafkagroup.runtime.member.protocol import MembershipProtocol, SupportedProtocols
from kafkagroup.transport.sasl.secret import Secret, check_type
from kafkagroup.transport.security import Security
from kafkagroup.transport.trouble import Troubles

if TYPE_CHECKING:
    from kazoo.security import ACL

    from kafkagroup.zookeeper.driver import ZooKeeperDriver
    from kafkagroup.zookeeper.session import Access

__all__ = ["ZooKeeperMembership"]

_MAX_TIMEOUT_MS = 2**31 - 1
"""ZooKeeper's protocol has 32 bits for the timeout."""

_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "hosts": ((str,), "a string"),
    "session_timeout_ms": ((int, float), "a number"),
    "root": ((str,), "a string"),
    "security": ((Security, NoneType), "kafkagroup.Security(...) or None"),
    "username": ((str, NoneType), "a string or None"),
    "password": ((str, NoneType), "a string or None"),
    "acl": ((Sequence, NoneType), "a list of kazoo's ACLs or None"),
    # Any other value counts as True or False: the text "false" as True.
    "allow_plaintext_credentials": ((bool,), "True or False"),
}
"""Option -> the types that its value may have, and their name in errors."""


@public
@attrs.frozen(init=False)
class ZooKeeperMembership(MemberFactory):
    """Keep the members of a group in ZooKeeper, and its offsets in Kafka as usual.

    ```python
    zookeeper = ZooKeeperMembership("zk1:2181,zk2:2181,zk3:2181")
    async with Consumer("orders", group_id="billing", membership=zookeeper) as consumer: ...
    ```

    Each member has an ephemeral node. All members read the list of nodes, compute the same
    assignment with the first assignor that all of them support, and claim their partitions by
    ephemeral nodes. A partition is claimed before it is consumed, and released after its records
    are processed and committed and the callback has returned. Partitions that do not move are not
    interrupted. When the session ends, the partitions are `lost`.

    **How late a commit may come.** Kafka does not know these members, so it does not refuse the
    commit of a member that has lost its partitions. Records are delivered only within half of the
    session timeout after ZooKeeper's leader confirmed the session. Before each commit the member
    checks its claims, and sends the commit within half of the timeout after that. A request may
    still be late: if the process freezes after the check, or if the network or the broker delays
    it. The broker executes it on arrival, and it may set the group's offset back to the position of
    this member. The new owner does not read that offset, and overwrites it with its next commit;
    only if the new owner fails before that are records processed again. No records are lost, as a
    former owner has processed what it commits. The delay of the request has no limit.

    All members of the group must use the same ZooKeeper, `root` and group id. Do not mix them with
    members that Kafka coordinates: both would be assigned the same partitions. While Kafka has
    members in the group, it refuses the commits of members in ZooKeeper.
    """

    hosts: str
    """Addresses, comma-separated, optionally followed by a path that contains all nodes:
    "zk1:2181,zk2:2181/chroot"."""
    session_timeout_ms: int = attrs.field(kw_only=True)
    """How long a failed member keeps its claims. ZooKeeper grants between 2 and 20 of its ticks, by
    default 4 to 40 s."""
    root: str = attrs.field(kw_only=True)
    """Path of the node below which each group has its own node."""
    security: Security | None = attrs.field(kw_only=True)
    """TLS, as for brokers: `Security(ssl_ca_location="zk-ca.pem")`. None: no TLS."""
    username: str | None = attrs.field(kw_only=True)
    """The user to authenticate as, with `password`; usually the same for all members, as without an
    `acl` only this user may access the nodes."""
    password: Secret | None = attrs.field(kw_only=True)
    """The password of the user; no repr, log or traceback shows it."""
    sasl_mechanism: str | None = attrs.field(kw_only=True)
    """"DIGEST-MD5" or "GSSAPI", which need `pip install pure-sasl`; None: ZooKeeper's own "digest",
    which sends the password as it is."""
    acl: Sequence[ACL] | None = attrs.field(kw_only=True)
    """kazoo's ACLs for the nodes, and for `root` if it is created. None: all permissions for the
    authenticated user alone; without authentication, for everyone."""
    allow_plaintext_credentials: bool = attrs.field(kw_only=True)
    """Whether "digest" may be used without TLS, readable on the network."""
    foreign_members: Sequence[str] = attrs.field(kw_only=True)
    """Paths of nodes whose children are members, or claims, of other libraries in the same group,
    for a migration: this member refuses to start while there are any, with `JoinFailedError`, and
    reports trouble when one appears later."""
    _access: Access = attrs.field(init=False, repr=False, eq=False)

    @explains_unknown_options
    def __init__(
        self,
        hosts: str,
        *,
        session_timeout_ms: int = 10_000,
        root: str = "/kafkagroup",
        security: Security | None = None,
        username: str | None = None,
        password: str | Secret | None = None,
        sasl_mechanism: str | None = None,
        acl: Sequence[ACL] | None = None,
        allow_plaintext_credentials: bool = False,
        foreign_members: Sequence[str] = (),
    ) -> None:
        """Raises: ConfigurationError; ImportError without kazoo (`kafkagroup[zookeeper]`).

        Args:
            hosts: Addresses, comma-separated, optionally followed by a path that contains all
                nodes: "zk1:2181,zk2:2181/chroot".
            session_timeout_ms: How long a failed member keeps its claims. ZooKeeper grants between
                2 and 20 of its ticks, by default 4 to 40 s. In milliseconds; default 10,000.
            root: Path of the node below which each group has its own node. Default `'/kafkagroup'`.
            security: TLS, as for brokers: `Security(ssl_ca_location="zk-ca.pem")`. None: no TLS.
            username: The user to authenticate as, with `password`; usually the same for all
                members, as without an `acl` only this user may access the nodes. Default `None`.
            password: The password of the user; no repr, log or traceback shows it. Default `None`.
            sasl_mechanism: "DIGEST-MD5" or "GSSAPI", which need `pip install pure-sasl`; None:
                ZooKeeper's own "digest", which sends the password as it is.
            acl: Kazoo's ACLs for the nodes, and for `root` if it is created. None: all permissions
                for the authenticated user alone; without authentication, for everyone.
            allow_plaintext_credentials: Whether "digest" may be used without TLS, readable on the
                network. Default `False`.
            foreign_members: Paths of nodes whose children are members, or claims, of other
                libraries in the same group, for a migration: this member refuses to start while
                there are any, with `JoinFailedError`, and reports trouble when one appears later.
                Default `()`.
        """
        # First, and under the same name: the traceback of a later error may show variables.
        password = None if password is None else Secret(password)
        self.__attrs_init__(
            hosts,
            session_timeout_ms=session_timeout_ms,
            root=root,
            security=security,
            username=username,
            password=password,
            sasl_mechanism=sasl_mechanism,
            acl=acl,
            allow_plaintext_credentials=allow_plaintext_credentials,
            foreign_members=foreign_members,
        )

    def __attrs_post_init__(self) -> None:
        for name, (types, expected) in _TYPES.items():
            check_type(name, getattr(self, name), types, expected)
        if not 1 <= self.session_timeout_ms <= _MAX_TIMEOUT_MS:
            raise ConfigurationError(
                f"session_timeout_ms={self.session_timeout_ms}; expected 1 to {_MAX_TIMEOUT_MS}"
            )
        names = self.root.split("/")[1:]
        if not self.root.startswith("/") or not all(n and n not in (".", "..") for n in names):
            raise ConfigurationError(f"root={self.root!r}; expected a path such as '/kafkagroup'")
        paths = self.foreign_members
        if (
            isinstance(paths, str)
            or not isinstance(paths, Collection)
            or not all(isinstance(path, str) and path.startswith("/") for path in paths)
        ):
            raise ConfigurationError(
                f"foreign_members={paths!r}; expected paths such as ['/consumers/billing/ids']"
            )
        # Not at the top: `help(kafkagroup)` and completion in a REPL look at this class, also where
        # kazoo is missing. `driver` is imported now as well, because `create_member` runs in the
        # event loop, which the import would block.
        import_module("kafkagroup.zookeeper.driver")
        from kazoo.hosts import collect_hosts

        from kafkagroup.zookeeper.session import Access

        try:
            collect_hosts(self.hosts)  # otherwise the member would raise this, in the event loop
        except ValueError:
            raise ConfigurationError(f"hosts={self.hosts!r}; expected 'host:port,...'") from None
        access = Access(
            security=self.security,
            username=self.username,
            password=self.password,
            sasl_mechanism=self.sasl_mechanism,
            acl=self.acl,
            allow_plaintext_credentials=self.allow_plaintext_credentials,
        )
        object.__setattr__(self, "_access", access)  # the class is frozen

    @property
    def protocol(self) -> MembershipProtocol[Member]:
        """The protocol of the members that `create_member` returns."""
        from kafkagroup.zookeeper.driver import CLAIMS

        return CLAIMS

    def create_member(
        self,
        application: Application,
        config: MemberConfig,
        protocols: SupportedProtocols,
        loop_delay: LoopDelay,
        log: MembershipLog,
        troubles: Troubles,
    ) -> ZooKeeperDriver:
        """Return a member that is not running yet, for `Consumer` and `GroupMember`."""
        member = Member(
            config=evolve(config, session_timeout=self.session_timeout_ms / 1000),
            name=f"{quote(config.client_id or 'kafkagroup', safe='')}-{uuid.uuid4().hex}",
            protocols=protocols,
        )
        from kafkagroup.zookeeper.driver import ZooKeeperDriver

        # The chroot is part of the paths: kazoo does not create a missing one.
        hosts, _, chroot = self.hosts.partition("/")
        top = f"/{chroot}".rstrip("/")
        foreign = tuple(top + path for path in self.foreign_members)
        paths = Paths(top + self.root, config.group_id, foreign)
        return ZooKeeperDriver(
            hosts, self._access, paths, member, application, loop_delay, log, troubles
        )
