"""Parse times and durations: callbacks of click options. They return None if the option is not
given."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import click

__all__ = ["duration", "moment"]

_SHORT = re.compile(r"(\d+(?:\.\d+)?)([smhd])", re.ASCII)
_ISO = re.compile(r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def moment(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """Parse a time in ISO 8601 with a time zone."""
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        message = f"{value!r} is not a time such as 2026-01-31T12:00:00Z"
        raise click.BadParameter(message, ctx, param) from None
    if found.tzinfo is None:
        message = f"{value!r} has no time zone: append Z, or an offset such as +01:00"
        raise click.BadParameter(message, ctx, param)
    return found


def duration(ctx: click.Context, param: click.Parameter, value: str | None) -> timedelta | None:
    """Parse "90s", "15m", "2h", "7d", or a duration in ISO 8601, the format of Kafka's own
    tools."""
    if value is None:
        return None
    short, iso = _SHORT.fullmatch(value), _ISO.fullmatch(value)
    try:
        if short:
            return timedelta(**{_UNITS[short[2]]: float(short[1])})
        if iso and any(iso.groups()):
            days, hours, minutes, seconds = (float(number or 0) for number in iso.groups())
            return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        pass  # longer than a timedelta may be
    raise click.BadParameter(f"{value!r} is not a duration such as 90s, 2h or P1DT12H", ctx, param)
