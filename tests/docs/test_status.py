"""docs/status.md lists the KIPs that the code cites, and their tests exist."""

from __future__ import annotations

import re

from doc_blocks import ROOT

import kafkagroup

PAGE = (ROOT / "docs" / "status.md").read_text("utf-8")
ROWS = re.findall(r"^\| KIP-(\d+) \| (.+) \| (.+) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)


def cited() -> set[str]:
    sources = (path.read_text("utf-8") for path in (ROOT / "kafkagroup").rglob("*.py"))
    return {number for text in sources for number in re.findall(r"KIP-(\d+)", text)}


def test_every_kip_that_the_code_cites_is_listed_once_and_in_order() -> None:
    numbers = [int(number) for number, *_ in ROWS]
    assert numbers == sorted(set(numbers))
    assert cited() - {str(number) for number in numbers} == set()


def test_the_tests_of_every_kip_exist() -> None:
    for number, *_, tests in ROWS:
        paths = re.findall(r"`([^`]+)`", tests)
        assert paths, number
        assert [path for path in paths if not (ROOT / "tests" / path).exists()] == [], number


def test_no_kip_belongs_to_a_later_kafka_release() -> None:
    now = tuple(map(int, kafkagroup.__version__.split(".")[:2]))
    assert all(tuple(map(int, since.split("."))) <= now for _, _, since, _, _ in ROWS)
