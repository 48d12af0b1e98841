"""`kafkagroup doctor`: its printed findings and exit codes."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from certificates import authority
from cli.programs import run
from click.testing import CliRunner

from kafkagroup.cli._app import app
from kafkagroup.cli._connection import option_words
from kafkagroup.cli._words import in_shell_words
from kafkagroup.runtime.client import uncompiled
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


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (
            ("-X", "sasl.mechanism=PLAIN", "-X", "sasl.username=ann", "-X", "sasl.password=x"),
            "-X security.protocol",
        ),
        ((), "-X sasl.mechanism"),
    ],
)
def test_advice_is_in_the_words_of_the_command_line(
    tmp_path: Path, options: tuple[str, ...], advice: str
) -> None:
    """A listener of SASL_PLAINTEXT, and clients of SASL_SSL and PLAINTEXT."""
    with EmbeddedKafka(users={"ann": "x"}) as kafka:
        arguments = ("doctor", "--bootstrap-servers", kafka.bootstrap_servers, *options, "--json")
        found = json.loads(CliRunner().invoke(app, arguments).stdout)["findings"]
    (failed,) = [one for one in found if one["status"] == "failed"]
    assert advice in failed["advice"]
    assert not re.search(r"sasl_|ssl_|security_|Security", failed["text"] + failed["advice"])


def test_python_words_become_flags_and_commands() -> None:
    for text, expected in {
        "give the CA as ssl_ca_location, if": "give the CA as -X ssl.ca.location, if",
        "set ssl_endpoint_identification_algorithm='https'": (
            "set -X ssl.endpoint.identification.algorithm=https"
        ),
        "leave enable_ssl_certificate_verification=True, and": (
            "leave -X enable.ssl.certificate.verification=true, and"
        ),
        "set sasl_mechanism in security": "set -X sasl.mechanism",
        "check sasl_username and sasl_password": (
            "check -X sasl.username and KAFKAGROUP_SASL_PASSWORD"
        ),
        'takes security=None, or a Security with security_protocol="SASL_PLAINTEXT"': (
            "takes -X security.protocol=PLAINTEXT, or -X security.protocol=SASL_PLAINTEXT"
        ),
        "another of bootstrap_servers": "another of --bootstrap-servers",
        "Admin.list_topics() lists them": "`kafkagroup topics list` lists them",
        "by Admin.open_transactions() of __consumer_offsets": (
            "by `kafkagroup transactions find-hanging --all --topic __consumer_offsets`"
        ),
        "topic my_group_ids, unlike group_id": "topic my_group_ids, unlike --group",
        "/etc/ssl_key": "/etc/ssl_key",
        "there is no group 'client_id'": "there is no group 'client_id'",
    }.items():
        assert in_shell_words(text) == expected


@pytest.mark.parametrize("module", ["addresses", "clock", "cluster", "groups", "topics"])
def test_the_advice_of_the_library_has_pythons_words(module: str) -> None:
    """`examine` is a call in Python: Kafka's names of options are no words there."""
    source = Path(find_spec(f"kafkagroup.admin.doctor.{module}").origin).read_text("utf-8")
    names = [word.removeprefix("-X ") for word in option_words().values() if "." in word]
    texts = re.findall(r'"[^"\n]*"', source)
    assert [(name, text) for text in texts for name in names if name in text] == []


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
    assert "`kafkagroup topics list`" in findings[-1]["advice"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--bootstrap-servers", "a:b"), "--bootstrap-servers has 'a:b'; expected host:port"),
        (("--timeout", "0"), "doctor: Invalid value for '--timeout': 0.0 is not in the range"),
        (("-X", "ssl.ca.location=none.pem"), "-X ssl.ca.location=none.pem: No such file"),
        (
            ("-X", "sasl.mechanism=PLAIN"),
            "PLAIN needs -X sasl.username and KAFKAGROUP_SASL_PASSWORD\n",
        ),
    ],
)
def test_invalid_arguments_are_an_error(arguments: tuple[str, ...], line: str) -> None:
    found = CliRunner().invoke(app, ["doctor", *arguments])
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.startswith(f"kafkagroup: {line}")
    assert found.stderr.count("\n") == 1
