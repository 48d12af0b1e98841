"""Certificates, keys and CAs that are replaced while a client runs."""

from __future__ import annotations

import errno
import logging
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, authority

from kafkagroup import Security
from kafkagroup.errors import ConfigurationError
from kafkagroup.transport.tls_files import FileContext

ME, RENEWED = authority().issue("me@example.org"), authority().issue("me@example.org")
OTHER = Authority()


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    found = {name: tmp_path / f"{name}.pem" for name in ("ca", "certificate", "key")}
    install(found, ME.chain, ME.key, authority().pem)
    return found


def install(files: dict[str, Path], chain: str, key: str, ca: str = "") -> None:
    for name, text in (("certificate", chain), ("key", key), ("ca", ca)):
        if text:
            # As certificate managers do: the file is never half written.
            new = files[name].with_suffix(".new")
            new.write_text(text)
            os.replace(new, files[name])


def file_context(files: dict[str, Path], **given: Any) -> FileContext:
    security = Security(
        ssl_ca_location=files["ca"],
        ssl_certificate_location=files["certificate"],
        ssl_key_location=files["key"],
        **given,
    )
    assert security.tls is not None
    context = security.tls._context
    assert isinstance(context, FileContext)
    return context


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if r.levelno >= logging.WARNING]


def test_files_that_stay_are_loaded_once(files: dict[str, Path]) -> None:
    context = file_context(files)
    first = context.current
    os.utime(files["ca"], (1, 1))  # touched, with the same contents
    assert context.renew() is context.renew() is first


@pytest.mark.parametrize(
    "change",
    [
        lambda f: install(f, RENEWED.chain, RENEWED.key),
        lambda f: install(f, "", "", OTHER.pem),
        lambda f: f["ca"].write_text(f["ca"].read_text() + OTHER.pem),
    ],
    ids=["certificate and key", "another CA", "one more CA"],
)
def test_changed_files_are_used_by_the_next_connection(
    files: dict[str, Path], change: Callable[[dict[str, Path]], object]
) -> None:
    """A renewed certificate was ignored: once the old one had expired, each connection failed, and
    only a restart helped."""
    context = file_context(files)
    before = context.renew()
    change(files)
    after = context.renew()
    assert after is not before
    assert context.renew() is context.current is after
    authorities = {c["serialNumber"] for c in after.get_ca_certs()}
    expected = ssl.create_default_context(cadata=files["ca"].read_text())
    assert authorities == {c["serialNumber"] for c in expected.get_ca_certs()}


def test_a_change_of_the_same_size_and_time_is_noticed(files: dict[str, Path]) -> None:
    """Tools that synchronize directories keep the time of the last change."""
    certificates = [authority().issue("me@example.org") for _ in range(20)]
    sizes = {len(c.pem): c for c in certificates}
    one = next(c for c in certificates if c is not sizes[len(c.pem)])
    other = sizes[len(one.pem)]
    files["certificate"].write_text(one.pem)
    os.utime(files["certificate"], (1, 1))
    security = Security(ssl_certificate_location=files["certificate"], ssl_ca_pem=OTHER.pem)
    assert security.tls is not None
    context = security.tls._context
    assert isinstance(context, FileContext)
    before = context.renew()
    files["certificate"].write_text(other.pem)
    os.utime(files["certificate"], (1, 1))
    assert context.renew() is not before


def test_a_pair_that_is_replaced_in_two_steps_stays_the_earlier_one_in_between(
    files: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    context = file_context(files)
    before = context.renew()
    install(files, RENEWED.chain, "")
    assert [context.renew() for _ in range(3)] == [before] * 3
    (warning,) = warnings_in(caplog)
    assert warning == (
        "the changed TLS files do not load, and the earlier ones stay in use: ssl_certificate and"
        " ssl_key: key values mismatch; expected a certificate in PEM and the key that belongs to"
        " it; the files are read again before each connection"
    )
    install(files, "", RENEWED.key)
    assert context.renew() is not before
    assert len(caplog.records) == 1


@pytest.mark.parametrize("name", ["ca", "certificate", "key"])
def test_a_missing_or_damaged_file_leaves_the_earlier_ones_in_use(
    files: dict[str, Path], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    context = file_context(files)
    before = context.renew()
    good = files[name].read_text()
    files[name].unlink()
    assert context.renew() is before
    files[name].write_text("not a certificate")
    assert context.renew() is before
    assert len(warnings_in(caplog)) == 1, "one warning for the whole time"
    files[name].write_text(good)
    assert context.renew() is before
    files[name].write_text("")
    assert context.renew() is before
    assert len(warnings_in(caplog)) == 2


def test_an_encrypted_key_with_another_password_leaves_the_earlier_one_in_use(
    files: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    context = file_context(files, ssl_key_password="first")
    before = context.renew()
    install(files, RENEWED.chain, RENEWED.key_with("second"))
    assert context.renew() is before
    assert len(warnings_in(caplog)) == 1
    assert "second" not in caplog.text
    install(files, RENEWED.chain, RENEWED.key_with("first"))
    assert context.renew() is not before


def test_a_ca_directory_is_read_again(tmp_path: Path) -> None:
    security = Security(ssl_ca_location=tmp_path)
    assert security.tls is not None
    context = security.tls._context
    assert isinstance(context, FileContext)
    before = context.renew()
    assert context.renew() is before
    (tmp_path / "0123abcd.0").write_text(OTHER.pem)
    after = context.renew()
    assert after is not before
    os.symlink(tmp_path / "nowhere", tmp_path / "4567abcd.0")
    assert context.renew() is not after


def test_the_systems_certificates_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(authority().pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    tls = Security().tls
    assert tls is not None
    context = tls._context
    assert isinstance(context, FileContext)
    assert len(context.renew().get_ca_certs()) == 1
    bundle.write_text(authority().pem + OTHER.pem)
    assert len(context.renew().get_ca_certs()) == 2


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    """`ssl_ca_location=/dev/fd/63`, from a shell's process substitution, cannot be read again."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    made: list[ssl.SSLContext] = []

    def make() -> ssl.SSLContext:
        made.append(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        return made[-1]

    context = FileContext(make, [str(pipe)])
    assert context.renew() is context.current
    assert len(made) == 1


def test_the_files_must_load_at_first(files: dict[str, Path]) -> None:
    install(files, RENEWED.chain, "")
    with pytest.raises(ConfigurationError, match="key values mismatch"):
        file_context(files)


def test_files_that_could_not_be_opened_for_now_are_read_again(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process had as many files open as it may have. The renewed certificate counted as broken
    until its file changed again."""
    context = file_context(files)
    first = context.current
    install(files, RENEWED.chain, RENEWED.key)
    load = ssl.SSLContext.load_cert_chain

    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", full)
    assert context.renew() is first
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", load)
    assert context.renew() is not first
