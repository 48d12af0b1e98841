"""`kafkagroup doctor`: its printed findings and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from certificates import authority
from cli.programs import run
from click.testing import CliRunner

from kafkagroup.cli._app import app
from kafkagroup.runtime import uncompiled
from kafkagroup.testing import EmbeddedKafka

ADVICE = (
    "check that a broker runs there, that one of its listeners has this port, and that no firewall"
    " refuses it"
)


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find what is found where kafkagroup is compiled, without a warning before it."""
    monkeypatch.setattr(uncompiled, "is_compiled", lambda: True)


def test_a_profile_for_a_healthy_sasl_ssl_cluster_has_no_findings(
    tmp_path: Path, nothing_configured: Path
) -> None:
    """As a new user does: a profile, and one command."""
    ca = tmp_path / "ca.pem"
    ca.write_text(authority().pem)
    nothing_configured.write_text(
        "[default]\n"
        'security.protocol = "SASL_SSL"\n'
        f'ssl.ca.location = "{ca}"\n'
        'sasl.mechanism = "SCRAM-SHA-512"\n'
        'sasl.username = "ann"\n'
        'sasl.password = "canary"\n'
    )
    nothing_configured.chmod(0o600)
    tls = authority().server_context(authority().issue(), tmp_path)
    with EmbeddedKafka({"t": 1}, tls=tls, users={"ann": "canary"}) as kafka:
        servers = kafka.bootstrap_servers
        done = run("doctor", "--bootstrap-servers", servers, "--topic", "t")
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode().splitlines()
    assert f"ok           name {servers}: is an address" in lines
    assert f"ok           SASL {servers}: authenticated by SCRAM-SHA-512 as ann" in lines
    assert "ok           reading t: is allowed" in lines
    assert "canary" not in done.stdout.decode()


def test_problems_are_printed_with_remedies() -> None:
    arguments = ("doctor", "--bootstrap-servers", "127.0.0.1:1", "--group", "\x1b[2J")
    found = CliRunner().invoke(app, arguments)
    assert (found.exit_code, found.stderr) == (1, "")
    assert found.stdout.splitlines() == [
        "ok           name 127.0.0.1:1: is an address",
        "failed       connection 127.0.0.1:1: Connection refused",
        f"{'':13}-> {ADVICE}",
        "not checked  cluster: no bootstrap server could be used",
        "not checked  group \\x1b[2J: no bootstrap server could be used",
    ]


def test_json() -> None:
    with EmbeddedKafka() as kafka:
        servers = kafka.bootstrap_servers
        found = CliRunner().invoke(
            app, ["doctor", "--bootstrap-servers", servers, "--topic", "none", "--json"]
        )
    assert (found.exit_code, found.stderr) == (1, "")
    findings = json.loads(found.stdout)["findings"]
    assert findings[0] == {
        "check": "name",
        "subject": servers,
        "status": "ok",
        "text": "is an address",
        "advice": "",
    }
    assert (findings[-1]["check"], findings[-1]["status"]) == ("topic", "failed")
    assert findings[-1]["advice"].startswith("check its name")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--bootstrap-servers", "a:b"), "bootstrap_servers has 'a:b'; expected host:port"),
        (("--timeout", "0"), "doctor: Invalid value for '--timeout': 0.0 is not in the range"),
        (("-X", "ssl.ca.location=none.pem"), "ssl_ca_location='none.pem': No such file"),
        (("-X", "sasl.mechanism=PLAIN"), "PLAIN needs sasl_username and sasl_password"),
    ],
)
def test_invalid_arguments_are_an_error(arguments: tuple[str, ...], line: str) -> None:
    found = CliRunner().invoke(app, ["doctor", *arguments])
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.startswith(f"kafkagroup: {line}")
    assert found.stderr.count("\n") == 1
