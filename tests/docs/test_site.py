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
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import open_page
from doc_blocks import ROOT

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
            if not self.path.endswith(".html"):
                return super().do_GET()
            page = (site / self.path.lstrip("/")).read_text("utf-8")
            body = page.replace("</body>", _WITNESS).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return None

    handler = functools.partial(Handler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


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
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
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
    ".coordination",
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
    told = re.search(r'<html[^>]* data-seen="([^"]*)"', seen.dom)
    assert told
    facts = json.loads(html.unescape(told[1]))
    assert len(facts["pictures"]) == pictures
    assert all(width > 0 for _, width in facts["pictures"]), facts["pictures"]
    assert facts["requests"]
    assert all(name.startswith(address) for name in facts["requests"]), facts["requests"]
    assert facts["wide"] <= 0


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
