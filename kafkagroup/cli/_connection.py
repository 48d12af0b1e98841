"""The connection options of a command: arguments, environment, a profile, or the defaults.

Options have Kafka's names, with dots, dashes or underscores. If several of these sources set an
option, the first of them, in this order, wins. An unknown option is an error that suggests the
nearest known name: a misspelt one would otherwise be ignored silently. Only in the environment,
names that are similar to no option are ignored. No message contains a value that may be secret.
"""

from __future__ import annotations

import functools
import os
import re
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping
from difflib import get_close_matches
from inspect import signature
from typing import Any, NamedTuple, TypeVar

import anyio
import attrs
import click

from kafkagroup import Admin, Consumer, Security
from kafkagroup._option_kinds import declared, text_types
from kafkagroup.cli._profiles import Setting, load_profile, others_can_read
from kafkagroup.errors import ConfigurationError
from kafkagroup.options import AdminOptions, ConsumerOptions, ProducerOptions

__all__ = ["Connection", "connected", "connection_of", "option_words"]

T = TypeVar("T")

_PREFIX = "KAFKAGROUP_"
_ARGUMENTS = ("bootstrap_servers", "profile", "config", "properties")
"""What `connected` adds to a command, in the order that `connection_of` expects."""
_DEFAULT_SERVERS = "localhost:9092"
_SPARK_OPTIONS = {
    "bootstrap_servers",
    "client_id",
    "connections_max_idle_ms",
    "default_api_timeout_ms",
    "request_timeout_ms",
}
"""The options of clients that Spark's Kafka source has, too, besides those of `Security`."""


@attrs.frozen
class Connection:
    """The options to connect to a cluster, for the clients of this library."""

    given: Mapping[str, Any] = attrs.field(factory=dict, repr=lambda given: str([*given]))
    """Argument of a client or of `Security` -> value, for each option that is set. The `repr` has
    the names only: a value may be secret."""

    def options(self, client: Callable[..., object] | None = None) -> dict[str, Any]:
        """Return the keyword arguments for any client: `Admin(**connection.options())`. With a
        `client`, also the given options that only it takes, such as `group_id` of a `Consumer`.

        Reads certificates. Raises: ConfigurationError.
        """
        accepted = _parameters(client) if client else _parameters(Admin) & _parameters(Consumer)
        options = {name: value for name, value in self.given.items() if name in accepted}
        return {
            **options,
            "bootstrap_servers": self.bootstrap_servers,
            "security": self._security(),
        }

    def properties(self) -> dict[str, str]:
        """Return the connection options for Spark, by Kafka's names; secrets are included."""
        accepted = _SPARK_OPTIONS | _parameters(Security)
        given = {"bootstrap_servers": self.bootstrap_servers, **self.given}
        return {
            name.replace("_", "."): str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in given.items()
            if name in accepted
        }

    def run(self, work: Callable[[Admin], Awaitable[T]]) -> T:
        """Return the result of `work`, run in an event loop with an `Admin` of the cluster."""

        async def with_admin() -> T:
            async with Admin(**self.options(Admin)) as admin:
                return await work(admin)

        return anyio.run(with_admin)

    @property
    def bootstrap_servers(self) -> str:
        """The given addresses, or the default one."""
        servers: str = self.given.get("bootstrap_servers", _DEFAULT_SERVERS)
        return servers

    @property
    def group_id(self) -> str | None:
        """The default group of a command; None without one."""
        return self.given.get("group_id")

    def _security(self) -> Security | None:
        """Return the security options, None if none are given; print the warnings about them."""
        accepted = _parameters(Security)
        given = {name: value for name, value in self.given.items() if name in accepted}
        if not given:
            return None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            security = Security(**given)
        for warning in caught:
            click.echo(f"kafkagroup: warning: {warning.message}", err=True)
        return security


def connected(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the connection options to a command, which gets them as `connection`."""

    @click.option(
        "-b",
        "--bootstrap-servers",
        "--bootstrap-server",
        "bootstrap_servers",
        metavar="HOST:PORT[,...]",
        help=f"Addresses of brokers.  [default: {_DEFAULT_SERVERS}]",
    )
    @click.option("--profile", metavar="NAME", help="The profile to use.")
    @click.option(
        "--config",
        metavar="FILE",
        help="The file with the profiles.  [default: ~/.config/kafkagroup.toml]",
    )
    @click.option(
        "-X",
        "--property",
        "properties",
        metavar="NAME=VALUE",
        multiple=True,
        help="Another connection option by Kafka's name, such as sasl.mechanism=PLAIN. Other users"
        " of this machine can read passwords on the command line: put them into a profile or into"
        f" {_PREFIX}SASL_PASSWORD.",
    )
    @functools.wraps(command)
    def with_connection(*args: Any, **given: Any) -> Any:
        connection = connection_of(given)
        rest = {name: value for name, value in given.items() if name not in _ARGUMENTS}
        return command(*args, connection=connection, **rest)

    return with_connection


def connection_of(given: Mapping[str, Any]) -> Connection:
    """Return the connection for the arguments of a command with the options of `connected`.

    Raises: ConfigurationError.
    """
    servers, profile, config, properties = (given[name] for name in _ARGUMENTS)
    # An empty text counts as not given.
    path, in_file = load_profile(
        config or os.environ.get(f"{_PREFIX}CONFIG") or None,
        profile or os.environ.get(f"{_PREFIX}PROFILE") or None,
    )
    in_profile = _values(in_file)
    if any(_known()[name].is_secret for name in in_profile) and others_can_read(path):
        click.echo(
            f"kafkagroup: warning: {path} contains a secret, and others can read it: chmod 600 it",
            err=True,
        )
    arguments = [_parse_property(text) for text in properties]
    if servers is not None:
        arguments.append(Setting("bootstrap.servers", servers, "--bootstrap-servers"))
    return Connection({**in_profile, **_values(_environment()), **_values(arguments)})


def option_words() -> dict[str, str]:
    """Return name of an option in Python -> how a user of the command line sets it: by an argument,
    or, if it is a secret, by an environment variable, as other users can read arguments."""
    return {
        name: f"{_PREFIX}{name.upper()}" if option.is_secret else f"-X {name.replace('_', '.')}"
        for name, option in _known().items()
    } | {"bootstrap_servers": "--bootstrap-servers", "group_id": "--group"}


def _parse_property(text: str) -> Setting:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ConfigurationError("-X: expected NAME=VALUE")
    return Setting(name, value, f"-X {name}")


def _environment() -> list[Setting]:
    """Return the settings in variables with this library's prefix. Other programs may use that
    prefix, too: a name that is not similar to any option is ignored."""
    # CONFIG and PROFILE choose the profile: they are no options.
    option_variable = re.compile(_PREFIX + "(?!(?:CONFIG|PROFILE)$)")
    return [
        Setting(name, value, f"variable {variable}")
        for variable, value in os.environ.items()
        if value and option_variable.match(variable)
        for name in [variable[len(_PREFIX) :]]
        if get_close_matches(_python_name(name), _known(), n=1, cutoff=0.8)
    ]


# ---------------------------------------------------------------- names and values


class _Option(NamedTuple):
    parse: Callable[[object], object]
    """Converts a text or a TOML value. Raises: ValueError with what was expected."""
    is_secret: bool


def _values(settings: Iterable[Setting]) -> dict[str, object]:
    """Return argument -> value. Raises: ConfigurationError for an unknown option, one that is given
    twice, and a value that cannot be parsed."""
    values: dict[str, object] = {}
    for name, value, where in settings:
        option = _python_name(name)
        known = _known().get(option)
        if known is None:
            near = get_close_matches(option, _known(), n=1)
            names = near[0].replace("_", ".") if near else ""
            raise ConfigurationError(
                f"{where}: there is no such option; "
                + (f"did you mean {names}?" if near else "names are Kafka's, as security.protocol")
            )
        if option in values:
            raise ConfigurationError(f"{where}: the option is given twice")
        try:
            values[option] = known.parse(value)
        except ValueError as error:
            raise ConfigurationError(f"{where}: {error}") from None
    return values


def _python_name(name: str) -> str:
    """Return the name in Python of an option with Kafka's name."""
    return re.sub("[.-]", "_", name.lower())


def _parameters(client: Callable[..., object]) -> set[str]:
    return set(signature(client).parameters)


@functools.cache
def _known() -> Mapping[str, _Option]:
    """Return name in Python -> option, of the options that can be set as text."""
    of_clients = {
        name: _Option(_PARSERS[option.text_type], is_secret=False)
        for options in (ConsumerOptions, AdminOptions, ProducerOptions)
        for name, option in declared(options).items()
        if option.text_type is not None
    }
    parameters = signature(Security).parameters
    of_security = {
        # Annotations are strings, such as "str | Secret | None".
        name: _Option(_PARSERS[kind], is_secret="Secret" in parameters[name].annotation)
        for name, kind in text_types(Security).items()
    }
    return of_clients | of_security


def _text(value: object) -> str:
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ",".join(value)
    if not isinstance(value, str):
        raise ValueError("expected a text, in quotes")
    return value


def _whole(value: object) -> int:
    # Every number of 18 digits fits into 64 bits.
    if isinstance(value, bool) or not re.fullmatch(r"-?\d{1,18}", str(value), re.ASCII):
        raise ValueError("expected a whole number")
    return int(str(value))


def _number(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise ValueError("expected a number") from None


def _boolean(value: object) -> bool:
    text = str(value).lower()
    if text not in ("true", "false"):
        raise ValueError("expected true or false")
    return text == "true"


_PARSERS: Mapping[type, Callable[[object], object]] = {
    bool: _boolean,
    float: _number,
    int: _whole,
    str: _text,
}
"""Type of an option -> the function that parses a text or a TOML value."""
