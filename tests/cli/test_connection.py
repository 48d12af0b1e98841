"""The sources of a command's connection options, and their errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from kafkagroup import Admin, Consumer, GroupMember
from kafkagroup.cli._app import _one_line
from kafkagroup.cli._connection import Connection, connected

PROFILES = """\
[default]
bootstrap.servers = "default:1"
client-id = "me"

[profiles.production]
bootstrap_servers = ["one:1", "two:2"]
security.protocol = "SASL_PLAINTEXT"
sasl.mechanism = "SCRAM-SHA-256"
sasl.username = "operator"
sasl.password = "in-the-file"
group.id = "billing"
request.timeout.ms = 1_000
enable.auto.commit = false
"""


def connection(*arguments: str, **variables: str) -> Connection:
    """Return the options that a command gets."""
    result, got = asked(*arguments, **variables)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return got[0]


def asked(*arguments: str, **variables: str) -> tuple[Result, list[Connection]]:
    got: list[Connection] = []

    class Group(click.Group):
        def invoke(self, ctx: click.Context) -> Any:
            with _one_line():
                return super().invoke(ctx)

    @click.group(cls=Group)
    def app() -> None: ...

    @app.command("do")
    @connected
    def do(connection: Connection) -> None:
        connection.options()
        got.append(connection)

    env = {f"KAFKAGROUP_{name}": value for name, value in variables.items()}
    return CliRunner(env=env).invoke(app, ["do", *arguments]), got


def one_line(*arguments: str, **variables: str) -> str:
    """Return the error message of a command with wrong arguments."""
    result, got = asked(*arguments, **variables)
    assert (result.exit_code, result.stdout, got) == (2, "", [])
    assert result.stderr.startswith("kafkagroup: ")
    assert result.stderr.count("\n") == 1
    assert "hunter2" not in result.stderr
    return result.stderr.removeprefix("kafkagroup: ").rstrip()


@pytest.fixture
def profiles(nothing_configured: Path) -> Path:
    nothing_configured.write_text(PROFILES)
    nothing_configured.chmod(0o600)
    return nothing_configured


def test_defaults_apply_without_any_settings() -> None:
    found = connection()
    assert found.options() == {"bootstrap_servers": "localhost:9092", "security": None}
    assert (found.bootstrap_servers, found.group_id) == ("localhost:9092", None)


def test_the_first_source_that_sets_an_option_wins(profiles: Path) -> None:
    assert connection().options()["bootstrap_servers"] == "default:1"
    found = connection(BOOTSTRAP_SERVERS="variable:1").options()
    assert (found["bootstrap_servers"], found["client_id"]) == ("variable:1", "me")
    found = connection("--bootstrap-servers", "said:1", BOOTSTRAP_SERVERS="variable:1").options()
    assert (found["bootstrap_servers"], found["client_id"]) == ("said:1", "me")
    assert connection("-X", "client.id=x", CLIENT_ID="y").options()["client_id"] == "x"
    assert connection(CLIENT_ID="").options()["client_id"] == "me"  # an empty variable is not set


@pytest.mark.parametrize("name", ["client.id", "client-id", "client_id", "Client.ID"])
def test_option_names_accept_dots_dashes_and_underscores(name: str) -> None:
    assert connection("-X", f"{name}=x").options()["client_id"] == "x"


def test_both_names_of_bootstrap_servers_are_accepted() -> None:
    assert connection("--bootstrap-server", "a:1").bootstrap_servers == "a:1"


def test_a_profile_stands_alone(profiles: Path) -> None:
    """Options of [default] do not apply to another profile's cluster."""
    by_argument = connection("--profile", "production")
    assert connection(PROFILE="production").given == by_argument.given
    options = by_argument.options()
    assert options["security"].sasl_username == "operator"
    assert options["security"].sasl_password.reveal() == "in-the-file"
    del options["security"]
    assert options == {"bootstrap_servers": "one:1,two:2", "request_timeout_ms": 1_000}
    assert by_argument.group_id == "billing"


def test_each_client_gets_the_options_that_it_accepts(profiles: Path) -> None:
    found = connection("--profile", "production", "-X", "default.api.timeout.ms=7")
    consumer = found.options(Consumer)
    assert (consumer["group_id"], consumer["enable_auto_commit"]) == ("billing", False)
    Consumer("orders", **consumer)
    assert found.options(Admin)["default_api_timeout_ms"] == 7
    Admin(**found.options(Admin))
    Admin(**found.options())
    Consumer("orders", **found.options())
    assert set(found.options()) <= set(found.options(GroupMember))


def test_another_configuration_file_can_be_given(tmp_path: Path, profiles: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("default.bootstrap.servers = 'other:1'")
    assert connection("--config", str(other)).bootstrap_servers == "other:1"
    assert connection(CONFIG=str(other)).bootstrap_servers == "other:1"
    assert connection("--config", str(profiles), CONFIG=str(other)).bootstrap_servers == "default:1"


def test_spark_gets_strings_under_kafkas_option_names(profiles: Path) -> None:
    found = connection("--profile", "production", "-X", "enable.ssl.certificate.verification=False")
    assert found.properties() == {
        "bootstrap.servers": "one:1,two:2",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "operator",
        "sasl.password": "in-the-file",
        "request.timeout.ms": "1000",
        "enable.ssl.certificate.verification": "false",
    }


def test_the_repr_shows_no_secret(profiles: Path) -> None:
    assert "in-the-file" not in repr(connection("--profile", "production"))


def test_a_file_with_a_secret_that_others_can_read_is_warned_about(profiles: Path) -> None:
    profiles.chmod(0o640)
    result, _ = asked("--profile", "production")
    assert result.exit_code == 0
    assert result.stderr == (
        f"kafkagroup: warning: {profiles} contains a secret, and others can read it: chmod 600 it\n"
    )
    assert asked()[0].stderr == ""  # none is in [default]


def test_disabled_verification_is_warned_about() -> None:
    result, _ = asked("-X", "ssl.endpoint.identification.algorithm=none")
    assert result.exit_code == 0
    assert result.stderr.startswith("kafkagroup: warning: host names are not checked: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "variables", "line"),
    [
        (("-X", "hunter2"), {}, "-X: expected NAME=VALUE"),
        (
            ("-X", "sasl.pasword=hunter2"),
            {},
            "-X sasl.pasword: there is no such option; did you mean sasl.password?",
        ),
        (
            ("-X", "zzz=1"),
            {},
            "-X zzz: there is no such option; names are Kafka's, as security.protocol",
        ),
        (
            (),
            {"SASL_PASWOR": "hunter2"},
            "variable KAFKAGROUP_SASL_PASWOR: there is no such option; did you mean sasl.password?",
        ),
        (("-X", "client.id=a", "-X", "client-id=b"), {}, "-X client-id: the option is given twice"),
        (
            ("-X", "bootstrap.servers=a", "--bootstrap-servers", "b"),
            {},
            "--bootstrap-servers: the option is given twice",
        ),
        (
            ("-X", "request.timeout.ms=1e3"),
            {},
            "-X request.timeout.ms: expected a whole number",
        ),
        (
            (),
            {"CHECK_CRCS": "yes"},
            "variable KAFKAGROUP_CHECK_CRCS: expected true or false",
        ),
        (("-X", "close.timeout=long"), {}, "-X close.timeout: expected a number"),
        (
            ("-X", "sasl.password=hunter2", "-X", "security.protocol=SSL"),
            {},
            (
                "KAFKAGROUP_SASL_PASSWORD: no use; -X security.protocol is SSL, and there is no"
                " -X sasl.mechanism: for SASL over TLS give -X sasl.mechanism, such as"
                " 'SCRAM-SHA-512', and no -X security.protocol"
            ),
        ),
        (("--config", "none.toml"), {}, "none.toml: No such file or directory"),
    ],
)
def test_a_wrong_option_is_reported_in_one_line(
    arguments: tuple[str, ...], variables: dict[str, str], line: str
) -> None:
    assert one_line(*arguments, **variables) == line


def test_unrelated_environment_variables_are_ignored() -> None:
    assert connection(PURE="1", KAFKA_JARS="x").given == {}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[default]\nsasl.pasword = 'hunter2'", "{}, [default], sasl.pasword: there is no such"),
        ("[default]\nsasl.password = 12", "{}, [default], sasl.password: expected a text, in quo"),
        (
            "[default]\nclient-id = 'a'\nclient.id = 'b'",
            "{}, [default], client.id: the option is giv",
        ),
        ("[default]\nfetch.min.bytes = true", "{}, [default], fetch.min.bytes: expected a whole"),
        ("client.id = 'x'", "{}: client is outside of [default] and [profiles.NAME]; move"),
        ("profiles = 1", "{}: profiles: expected tables as [profiles.production]"),
        ("default = 7", "{}, [default]: expected a table"),
        ("[default", "{}: Expected ']' at the end of a table"),
    ],
)
def test_a_malformed_file_is_refused(nothing_configured: Path, text: str, line: str) -> None:
    nothing_configured.write_text(text)
    name = ["--profile", "x"] if text.startswith("profiles") else []
    assert one_line(*name).startswith(line.format(nothing_configured))


def test_a_binary_file_is_refused(nothing_configured: Path) -> None:
    nothing_configured.write_bytes(b"\xff")
    assert one_line() == f"{nothing_configured} is not UTF-8"


def test_a_missing_profile_is_refused(profiles: Path) -> None:
    assert one_line("--profile", "produktion") == (
        f"{profiles} has no profile 'produktion'; did you mean 'production'?"
    )
    assert one_line(PROFILE="x") == f"{profiles} has no profile 'x'; it has production"
    profiles.unlink()
    assert one_line("--profile", "x") == f"there is no profile 'x': {profiles} does not exist"


def test_a_home_directory_that_is_not_known_is_no_traceback(
    nothing_configured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container the user may have no entry in the list of users, and HOME may not be set."""
    assert one_line("--config", "~no-such-user/x") == "~no-such-user/x: No such file or directory"

    def expanduser(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", expanduser)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert connection().bootstrap_servers == "localhost:9092"
