"""The report page: its contents, escaped names, and rendering by a browser without a network."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="NOT TESTED, the report: matplotlib is not installed")

import matplotlib.image
from browser import open_page

from kafkagroup.spark.report import plots
from kafkagroup.spark.report.facts import Bar, Facts, Group, Rebalance, Stuck, total_lag
from kafkagroup.spark.report.page import render

EVIL = "<script>document.title='owned'</script>\"'&"


def at(seconds: float) -> datetime:
    return datetime(2026, 1, 1, 12) + timedelta(seconds=seconds)


def health(**more: Any) -> dict[str, Any]:
    return {
        "kind": "consumer",
        "status": "STOP",
        "members": 2,
        "lag": 1234,
        "seconds": 77.12,
        "rebalances": 3,
        "rebalances_per_hour": 3.33,
        "unstable_share": 0.123,
        "skew": 1.5,
        "lag_skew": None,
        "coverage": at(0),
        "gone_at": None,
        **more,
    }


def group(name: str, topic: str = "orders", member: str = "a") -> Group:
    bars = [Bar(topic, p, member, 1, at(0), at(20)) for p in range(4)]
    bars += [Bar(topic, p, f"{member}-{p % 2}", 2, at(20 + 4 * (p % 2)), None) for p in range(4)]
    return Group(
        name=name,
        health=health(),
        lag=[(at(n), n * 7 % 50) for n in range(60)],
        rebalances=[
            Rebalance(1, "first seen", at(0), at(0.4), 1, 0),
            Rebalance(2, "1 joined", at(20), at(24), 2, 2),
            Rebalance(3, "topics or assignor changed", at(50), None, 2, 0),
        ],
        bars=bars,
    )


def facts(*groups: Group, stuck: tuple[Stuck, ...] = ()) -> Facts:
    return Facts(at(60), stuck, groups)


def words(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html[html.index("<body>") :]))


def test_stuck_partitions_come_first() -> None:
    stuck = Stuck("billing", "orders", 3, "STALL", 12, 70.25, at(5))
    text = words(render(facts(group("billing"), stuck=(stuck,))))
    assert "Stuck partitions group partition status" in text
    assert "billing orders/3 STALL 12 70.2 2026-01-01 12:00:05" in text
    assert text.index("STALL") < text.index("Health") < text.index("generation cause")
    assert "2 1 joined 2026-01-01 12:00:20 4.000 2 2" in text
    assert "3 topics or assignor changed 2026-01-01 12:00:50 not ended 2 0" in text


def test_a_group_that_is_gone_says_since_when() -> None:
    gone = Group(name="billing", health=health(status=None, gone_at=at(7)))
    text = words(render(facts(gone)))
    assert "billing consumer gone since 2026-01-01 12:00:07 2 1,234" in text
    assert text.endswith("billing gone since 2026-01-01 12:00:07 ")


def test_names_are_escaped_everywhere() -> None:
    """The names of groups, topics and members are chosen by their creators, and shown to other
    people."""
    stuck = Stuck(EVIL, EVIL, 0, "STOP", None, None, None)
    html = render(facts(group(EVIL, EVIL, EVIL), group("$x^{$ \x00 日本"), stuck=(stuck,)))
    assert "<script" not in html
    assert "\x00" not in html
    assert "$x^{$" in words(html)
    assert html.count("Content-Security-Policy") == 1


def test_many_points_are_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "MAX_PARTITIONS", 10)
    bars = [Bar("t", p, f"m{p % 40}", 1, at(0), at(9)) for p in range(200)]
    many = Group(name="g", health=health(), bars=bars)
    svg = plots.plot(many, at(60))
    assert "t/9" in svg
    assert "t/10" not in svg
    assert plots.plot(Group(name="g", health=health()), at(60)) == ""


def test_members_are_shown_by_client_id_or_instance() -> None:
    bars = [
        Bar("t", 0, "id-of-a", 1, at(0), at(9), "worker-a"),
        Bar("t", 1, "id-of-b", 1, at(0), at(9), "rdkafka"),
        Bar("t", 2, "id-of-c", 1, at(0), at(9), "rdkafka"),
    ]
    svg = plots.plot(Group(name="g", health=health(), bars=bars), at(9))
    shown = [
        name for name in ("worker-a", "rdkafka", "id-of-a", "id-of-b", "id-of-c") if name in svg
    ]
    assert shown == ["worker-a", "id-of-b", "id-of-c"]


def test_the_lag_of_a_group_is_the_sum_of_its_partitions() -> None:
    samples = [(at(0), 0, 5), (at(0), 1, 2), (at(1), 0, 0), (at(3), 1, 4)]
    assert total_lag(samples) == [(at(0), 7), (at(1), 2), (at(3), 4)]


def look_at(page: Path, folder: Path) -> str:
    """Return the rendered page; fail if it is nearly empty."""
    shot = folder / "shot.png"
    size = "--window-size=1200,1400"
    open_page(page.as_uri(), size, f"--screenshot={shot}", profile=folder / "profile")
    pixels = matplotlib.image.imread(shot)[:, :, :3]
    # Paper, ink, and the colours of plots.
    assert 0.5 < float((pixels > 0.99).all(axis=2).mean()) < 0.99
    assert float((pixels.max(axis=2) - pixels.min(axis=2) > 0.3).mean()) > 0.01
    return open_page(page.as_uri(), "--dump-dom", profile=folder / "profile").dom


def test_a_browser_renders_the_report(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(render(facts(group(EVIL, EVIL, EVIL), group("billing"))), "utf-8")
    dom = look_at(page, tmp_path)
    assert "<title>Groups</title>" in dom
    assert dom.count("<svg") == 2
