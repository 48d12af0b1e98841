"""The results of checks, and functions that create them from errors."""

from __future__ import annotations

from enum import StrEnum

import attrs

from kafkagroup.errors import AuthorizationError, KafkaGroupError
from kafkagroup.transport.options import ClientOptions

__all__ = ["Finding", "Status", "denied", "failed", "not_checked", "ok", "warning"]


class Status(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARNING = "warning"
    """It works now, but may fail later, or for other clients."""
    FAILED = "failed"
    NOT_CHECKED = "not checked"


@attrs.frozen(kw_only=True)
class Finding:
    """The result of one check."""

    check: str
    """The name of the check, such as "TLS": one of a fixed set."""
    subject: str
    """What was checked: a host and port, a broker, a group, a topic, a partition; "" for the
    installation, the cluster and its clock."""
    status: Status
    text: str
    """What was found."""
    advice: str = ""
    """What to do about it, with the options and calls of Python; "" if there is nothing to do."""

    def __str__(self) -> str:
        words = f"{self.status}: {self.check} {self.subject}".rstrip() + f": {self.text}"
        return f"{words}; {self.advice}" if self.advice else words


def ok(check: str, subject: str, text: str) -> Finding:
    return Finding(check=check, subject=subject, status=Status.OK, text=text)


def not_checked(check: str, subject: str, text: str) -> Finding:
    return Finding(check=check, subject=subject, status=Status.NOT_CHECKED, text=text)


def warning(check: str, subject: str, text: str, advice: str) -> Finding:
    return Finding(check=check, subject=subject, status=Status.WARNING, text=text, advice=advice)


def failed(check: str, subject: str, error: KafkaGroupError | str, advice: str = "") -> Finding:
    """Return a failed finding. Without `advice`, the part of the message after the last semicolon
    is the advice, as messages of this library have it there. A subject with which the message
    begins is not repeated in the text."""
    text = str(error).removeprefix(f"{subject}: ")
    if not advice:
        text, _, advice = text.rpartition("; ") if "; " in text else (text, "", "")
    return Finding(check=check, subject=subject, status=Status.FAILED, text=text, advice=advice)


def denied(
    check: str, subject: str, error: AuthorizationError, resource: str, options: ClientOptions
) -> Finding:
    """Return a failed finding with a kafka-acls command. `resource`: the command's option for the
    resource, such as "--group billing"."""
    name = options.security and options.security.sasl_username
    principal = f"User:{name}" if name else "the principal of this client"
    operation = error.operation.capitalize()
    return failed(
        check,
        subject,
        str(error),
        f"allow it: kafka-acls --add --allow-principal {principal} --operation {operation}"
        f" {resource}",
    )
