"""The report page: its contents, escaped names, and rendering by a browser without a network."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from html import unescape
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
    gone = Group(name="billing", health=health(status=None, gone_at=at(7)), is_ended=True)
    text = words(render(facts(gone)))
    assert "billing consumer gone since 2026-01-01 12:00:07 2 1,234" in text


def test_without_groups_there_is_no_time_of_the_run() -> None:
    """The page of a filter that no group matched was "As of 1970-01-01"."""
    text = words(render(Facts(None, (), ())))
    assert text.startswith(
        " Groups All times in UTC. Rebalances are counted since the log of groups can be read"
    )


def test_ended_groups_are_folded_behind_the_living_ones() -> None:
    """On a cluster with 142 groups, 99 that had ended filled the report, and hid the others."""
    ended = [
        Group(name=f"ended-{n}", health=health(status="STOP"), is_ended=True) for n in range(99)
    ]
    stuck = tuple(
        Stuck(name, "orders", 3, "STOP", 12, 70.25, at(5), name != "billing")
        for name in ("billing", "ended-7")
    )
    html = render(facts(group("billing"), *ended, stuck=stuck))
    before, folded = html.split('<details class="ended">')
    assert "ended-" not in before
    assert "1 living group: 1&nbsp;<span" in before
    text = words("<body>" + folded)
    assert text.startswith(" 99 ended groups: 99&nbsp; STOP They were deleted")
    assert "ended-7 orders/3 STOP 12" in text
    assert "ended-98 consumer STOP 2" in text
    assert "billing" not in text
    assert '<details class="ended" open>' in render(facts(*ended))


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
    assert [name for name, _ in plots.legend(bars)] == ["worker-a", "id-of-b", "id-of-c"]
    html = render(facts(Group(name="g", health=health(), bars=bars)))
    assert words(html).endswith(" worker-a id-of-b id-of-c ")


def test_a_lag_holds_until_its_next_sample() -> None:
    """A lag of 5 that was 9,000 an hour later was drawn as a ramp between them, which no sample
    has shown."""
    lag = [(at(0), 5), (at(3600), 9000)]
    axis = plots.draw(Group(name="g", health=health(), lag=lag), at(3600), plots.WIDE).axes[0]
    assert [line.get_drawstyle() for line in axis.lines] == ["steps-post"]
    (below,) = axis.collections
    times, heights = below.get_paths()[0].vertices.T
    assert {*heights[times < times.max()]} == {0, 5}
    assert {*heights[times == times.max()]} == {0, 5, 9000}


def crowd() -> list[Group]:
    """42 living groups, two with plots, one of them hard to label, and 99 ended ones."""
    name = "some.team.with.a.very.long.name.of-which-no-part-can-be-left-out"
    hours, members = 3600.0 * 7, [f"{name}-{n:032d}" for n in range(14)]
    crowded = Group(
        name=name * 3,
        health=health(lag=803_148_157_123),
        lag=[(at(n * 61), n * n * 1_234_567) for n in range(400)],
        # Rebalances in pairs, and 60 of them within seconds.
        rebalances=[
            Rebalance(99_000 + n, "1 joined", at(s), at(s + 0.2), 3, 2)
            for n, s in enumerate(
                sorted([*(hours / 9 * k + d for k in range(9) for d in (0, 20)), *range(60)])
            )
        ],
        bars=[
            Bar(name, p, members[(p + k) % 14], k, at(k * 5000), at(k * 5000 + 4900), "rdkafka")
            for p in range(70)
            for k in range(5)
        ],
    )
    others = [Group(name=f"{name}-{n}", health=health()) for n in range(40)]
    ended = [
        Group(name=f"ended-{n}", health=health(members=0, status="STOP"), is_ended=True)
        for n in range(99)
    ]
    return [crowded, group("日本-" * 20), *others, *ended]


FRAMES = """<!DOCTYPE html><meta charset="utf-8"><body><script>
const page = %s, found = [];
let loading = %s.map(width => new Promise(loaded => {
  const frame = document.createElement("iframe");
  frame.style = `width: ${width}px; height: 900px; border: 0`;
  frame.onload = () => {
    const all = frame.contentDocument, root = all.documentElement;
    all.querySelectorAll("details").forEach(one => one.open = true);
    let labels = 0, crossing = [];
    for (const svg of all.querySelectorAll("svg")) {
      const boxes = [...svg.querySelectorAll("text")].filter(t => t.getClientRects().length)
        .map(t => [t.textContent.trim(), t.getBoundingClientRect()]);
      labels += boxes.length;
      boxes.forEach(([one, a], n) => boxes.slice(n + 1).forEach(([other, b]) => {
        if (a.left < b.right && b.left < a.right && a.top + 1 < b.bottom && b.top + 1 < a.bottom)
          crossing.push(`${one} on ${other}`);
      }));
    }
    loaded({width, labels: labels > 30, crossing, beyond: root.scrollWidth - root.clientWidth});
  };
  frame.srcdoc = page;
  document.body.append(frame);
}));
Promise.all(loading).then(all => document.title = JSON.stringify(all));
</script></body>"""
"""Shows a page at several widths, and has in its title what it measures there."""


def test_nothing_overlaps_and_nothing_is_wider_than_the_window(tmp_path: Path) -> None:
    """Numbers of generations lay on each other, and a table was 1,100 pixels wide on a screen of
    500."""
    widths = [500, 800, 1130, 1400]
    page = tmp_path / "frames.html"
    text = json.dumps(render(facts(*crowd()))).replace("</", "<\\/")
    page.write_text(FRAMES % (text, widths), "utf-8")
    seen = open_page(
        page.as_uri(), "--virtual-time-budget=20000", "--dump-dom", profile=tmp_path / "profile"
    )
    title = re.search("<title>(.*?)</title>", seen.dom)
    assert title is not None, seen.console
    assert json.loads(unescape(title[1])) == [
        {"width": width, "labels": True, "crossing": [], "beyond": 0} for width in widths
    ]


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
    assert dom.count("<svg") == 4  # each for wide and for narrow windows
