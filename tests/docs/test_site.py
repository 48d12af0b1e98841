"""`make docs`: pages are built without a warning, load nothing from other hosts, and render."""

from __future__ import annotations

import functools
import html
import http.server
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from browser import open_page
from doc_blocks import ROOT
from http_servers import serving

from kafkagroup._option_kinds import declared
from kafkagroup.options import AdminOptions, ConsumerOptions, GroupMemberOptions

pytest.importorskip("mkdocs", reason="NOT TESTED, the pages of the guides: mkdocs is not installed")

pytestmark = pytest.mark.long

_WITNESS = """<script>
addEventListener("load", () => {
  document.documentElement.dataset.seen = JSON.stringify({
    pictures: [...document.images].map(i => [i.getAttribute("src"), i.naturalWidth]),
    requests: performance.getEntriesByType("resource").map(r => r.name),
    wide: document.documentElement.scrollWidth - innerWidth,
  });
});
</script></body>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    (made,) = re.findall(r"-m (mkdocs build .*)", (ROOT / "Makefile").read_text("utf-8"))
    # With --quiet there are no warnings, and so nothing to be strict about.
    assert made == "mkdocs build --strict"
    command = [sys.executable, "-m", *made.split()]
    done = subprocess.run(
        [*command, "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Serve the site; its pages report what they have loaded."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            kind = "text/html; charset=utf-8"
            if self.path == "/witness.html":
                body = (Path(__file__).parent / "witness.html").read_bytes()
            elif self.path == "/pages.json":
                kind = "application/json"
                body = json.dumps([str(page.relative_to(site)) for page in pages(site)]).encode()
            elif self.path.endswith(".html"):
                page = (site / self.path.lstrip("/")).read_text("utf-8")
                body = page.replace("</body>", _WITNESS).encode()
            else:
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return None

    handler = functools.partial(Handler, directory=str(site))
    with serving(handler) as served:
        yield served


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


class Links(HTMLParser):
    """The anchors of a page, and where its links lead."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: list[str] = []
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.anchors.add(given.get("id") or "")
        if tag == "a" and given.get("href"):
            self.targets.append(given["href"] or "")


class Loads(HTMLParser):
    """The resources that a page makes a browser load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag in ("script", "img", "iframe", "source", "video"):
            self.found.append(given.get("src") or "")
        elif tag == "link" and given.get("rel") not in ("prev", "next", "canonical"):
            self.found.append(given.get("href") or "")


def test_no_page_loads_anything_from_other_hosts(site: Path) -> None:
    assert len(pages(site)) > 20
    for page in pages(site):
        text = page.read_text("utf-8")
        outside = [s for s in Loads(text).found if re.match(r"(\w+:)?//", s)]
        assert not outside, page
        assert 'class="mermaid"' not in text, page  # its renderer would come from elsewhere
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", sheet.read_text("utf-8")), (
            sheet
        )


def test_internal_files_are_not_published(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not re.search(r"<!-- (run|made)\b", page.read_text("utf-8")), page
    assert not (site / "site").exists()


def test_generated_pages_are_published(site: Path) -> None:
    for page, words in {
        "cli.html": "Usage: kafkagroup plan",
        "errors.html": "Another member joined with this member",
        "operating.html": "kafkagroup_records_lag",
        "options.html": "max_poll_interval_ms",
        "rebalancing.html": "may go to",
        "api/consumer.html": "wait_assignment",
        "api/compat.html": '<a href="../parity.html">Every name</a>',
        "embedding.html": "<code>examples/aiohttp_worker.py</code> is a complete program",
    }.items():
        assert words in html.unescape((site / page).read_text("utf-8")), page


PUBLIC = (
    "",
    ".admin",
    ".admin.doctor",
    ".assign",
    ".assign.check",
    ".assign.plan",
    ".broker",
    ".coordination",
    ".events",
)
PUBLIC += (
    ".compat.kafka_python",
    ".compat.kiel",
    ".compat.pykafka",
    ".errors",
    ".spark",
    ".testing",
)
PUBLIC += (".exporters.opentelemetry", ".exporters.prometheus", ".spark.pipeline", ".spark.replay")


def test_every_public_name_is_in_the_api(site: Path) -> None:
    pages = "".join(page.read_text("utf-8") for page in (site / "api").glob("*.html"))
    there = {name.rpartition(".")[2] for name in re.findall(r'id="(kafkagroup\.[\w.]+)"', pages)}
    missing = []
    for name in PUBLIC:
        if "spark" in name and importlib.util.find_spec("pyspark") is None:
            continue  # the page is made from the sources, the list of names from the module
        module = importlib.import_module(f"kafkagroup{name}")
        missing += [f"{module.__name__}.{n}" for n in module.__all__ if n not in there]
    assert missing == []


@pytest.mark.parametrize(
    ("page", "pictures"), [("index.html", 2), ("rebalancing.html", 3), ("spark.html", 1)]
)
def test_a_browser_renders_every_page(
    page: str, pictures: int, address: str, tmp_path: Path
) -> None:
    seen = open_page(
        f"{address}/{page}", "--window-size=1280,1600", "--dump-dom", profile=tmp_path / "profile"
    )
    assert seen.console == ()
    found = re.search(r'<html[^>]* data-seen="([^"]*)"', seen.dom)
    assert found
    facts = json.loads(html.unescape(found[1]))
    assert len(facts["pictures"]) == pictures
    assert all(width > 0 for _, width in facts["pictures"]), facts["pictures"]
    assert facts["requests"]
    assert all(name.startswith(address) for name in facts["requests"]), facts["requests"]
    assert facts["wide"] <= 0


@pytest.fixture(scope="module")
def in_a_browser(address: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `witness.html` has seen on each page."""
    seen = open_page(
        f"{address}/witness.html",
        "--virtual-time-budget=100000",
        "--dump-dom",
        profile=tmp_path_factory.mktemp("profile"),
    )
    found = re.search(r'<html[^>]* data-seen="([^"]*)"', seen.dom)
    assert found, seen
    facts: dict[str, Any] = json.loads(html.unescape(found[1]))
    assert len(facts) > 30
    return facts


def test_no_page_or_table_scrolls_sideways(in_a_browser: dict[str, Any]) -> None:
    """On a phone, a tablet, a desk."""
    assert {page: seen["wide"] for page, seen in in_a_browser.items() if seen["wide"]} == {}


@pytest.mark.parametrize("scheme", ["default", "slate"])
def test_every_text_has_contrast(scheme: str, in_a_browser: dict[str, Any]) -> None:
    assert {page: seen[scheme] for page, seen in in_a_browser.items() if seen[scheme]} == {}


def test_dark_pictures_are_on_the_colour_of_the_page(address: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="NOT TESTED, dark pictures: no Pillow here")
    for name in ("rebalancing", "spark"):
        shot = tmp_path / f"{name}.png"
        open_page(
            f"{address}/{name}.html",
            "--blink-settings=preferredColorScheme=0",
            "--virtual-time-budget=10000",
            "--window-size=1400,5000",
            f"--screenshot={shot}",
            profile=tmp_path / f"{name} profile",
        )
        colours = image.open(shot).convert("RGB").getcolors(2**24)
        colours.sort(reverse=True)
        page, black, white = (30, 33, 41), (0, 0, 0), (255, 255, 255)
        assert colours[0][1] == page
        assert not {colour for count, colour in colours if count > 5_000} & {black, white}


def test_every_link_leads_to_a_page_and_an_anchor(site: Path) -> None:
    links = {page: Links(page) for page in pages(site)}
    for page, found in links.items():
        for target in found.targets:
            if re.match(r"https?:|mailto:", target):
                continue
            path, _, anchor = target.partition("#")
            folder = site if path.startswith("/") else page.parent
            to = (folder / unquote(path).lstrip("/")).resolve() if path else page
            assert to.is_file(), f"{page}: {target}"
            assert not anchor or to.suffix != ".html" or unquote(anchor) in links[to].anchors, (
                f"{page}: {target}"
            )


def test_every_option_has_an_anchor(site: Path) -> None:
    assert declared(ConsumerOptions).keys() <= Links(site / "options.html").anchors


def test_every_page_leads_to_the_next(site: Path) -> None:
    at, seen = site / "index.html", []
    while at not in seen:
        seen.append(at)
        text = at.read_text("utf-8")
        assert ("md-footer__link--prev" in text) == (len(seen) > 1), at
        following = re.search(
            r'<a href="([^"]+)" class="md-footer__link md-footer__link--next', text
        )
        at = (at.parent / following[1]).resolve() if following else at
    assert {*seen} == {*pages(site)} - {site / "404.html"}


def test_there_is_a_page_for_what_is_not_found(site: Path) -> None:
    page = Links(site / "404.html")
    assert {"/index.html", "/options.html", "/api/index.html"} <= {*page.targets}
    assert "<h1>Page not found</h1>" in (site / "404.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("page", "options"),
    [
        ("consumer", ConsumerOptions),
        ("admin", AdminOptions),
        ("membership", GroupMemberOptions),
    ],
)
def test_the_api_has_the_text_of_each_parameter(page: str, options: type, site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "api" / f"{page}.html").read_text("utf-8"))
    words = " ".join(html.unescape(text).lower().split())
    for name, option in declared(options).items():
        unlinked = re.sub(r" \(\[[^\]]*\]\([^)]*\)\)", "", option.text)  # as in docstrings
        said = re.sub(r"\]\([^)]*\)|[`\[]", "", unlinked).lower()
        assert said in words, name


def test_the_api_shows_no_internal_bases(site: Path) -> None:
    shown = {
        name
        for page in (site / "api").glob("*.html")
        for bases in re.findall(r"Bases: (.*?)</p>", page.read_text("utf-8"), re.DOTALL)
        for name in html.unescape(re.sub(r"<[^>]+>", "", bases)).replace(",", " ").split()
    }
    own = {n for name in PUBLIC for n in _exports(f"kafkagroup{name}")}
    others = {"BusyResourceError", "Collector", "DataSource", "StreamingQueryListener"}
    others |= {"Enum", "IntEnum", "StrEnum", "NamedTuple", "TypedDict"}
    others |= {"Exception", "ExceptionGroup[KafkaGroupError]", "ValueError", "UserWarning"}
    assert shown - own - others == set()
    assert {"KafkaGroupError", "GroupEvent", "NamedTuple"} <= shown


def _exports(name: str) -> Sequence[str]:
    try:
        return importlib.import_module(name).__all__
    except ImportError:  # without pyspark
        return ()


def test_the_search_works_from_the_file_system(site: Path, tmp_path: Path) -> None:
    """Browsers start no worker for a page from disk: `iframe-worker.js` replaces it."""
    seen = open_page(
        f"file://{site}/index.html?q=rebalance",
        "--virtual-time-budget=10000",
        "--dump-dom",
        profile=tmp_path / "profile",
    )
    assert seen.console == ()
    assert re.search(r"\d+ matching documents", seen.dom)
    assert 'class="md-search-result__item"' in seen.dom


def test_the_site_has_a_light_and_a_dark_scheme(site: Path) -> None:
    home = (site / "index.html").read_text("utf-8")
    for scheme, preference in {"default": "light", "slate": "dark"}.items():
        assert f'(prefers-color-scheme: {preference})" data-md-color-scheme="{scheme}"' in home
