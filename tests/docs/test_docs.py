"""The guides say what is so: their code runs, their commands exist, their pictures are today's.

How a page's Python is run (docs/*.md and README.md):

- All blocks of a page run in order, in one namespace, on asyncio, against an embedded broker of
  their own with the topics `orders` and `payments` (4 partitions each). A block may await at its
  top level, as in a notebook.
- `addresses` has what readers have elsewhere, to be replaced in the code that follows: at first
  `localhost:9092`, by the broker's.
- What a page prints is collected in `printed`; `kafka` is the broker, `servers` its address.
- `<!-- run` on a line of its own, Python, `-->`: what readers do not see. It sets up, calls what
  the page has defined, and asserts what it has come to.
- `<!-- run until: EXPRESSION -->` before a block that does not end by itself: it is cancelled when
  that is true.
- An output is a block of `text`. If it begins with `$ `, its commands are typed into a shell, whose
  broker is the page's and whose environment is `variables`; what each prints must be what follows
  it. Before any other output, `<!-- run output: EXPRESSION -->` gives the lines that the run has
  made. Only times may differ. `closing` ends with the page.
- Every function and method that a page shows must have been called when it is over.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import click
import doc_blocks
import made
import pytest
import timeline
from doc_blocks import OWN_TESTS, ROOT, Block, blocks, prose, run_page
from pictures import FOLDER, PICTURES

import kafkagroup
from kafkagroup import errors
from kafkagroup.assign import cooperative_sticky_assignor, range_assignor
from kafkagroup.cli._app import app
from kafkagroup.cli._profiles import load_profile
from kafkagroup.exporters.prometheus import GroupCollector

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a temporary folder, so that files written by a page do not stay."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")


RUN_HERE = [n for n, p in zip(NAMES, PAGES, strict=True) if blocks(p) and n not in OWN_TESTS]


@pytest.mark.parametrize("name", RUN_HERE)
def test_the_python_of_a_page_runs(name: str) -> None:
    run_page(ROOT / name)


def complaints(code: str) -> str:
    """Return pyflakes' findings, in the form of ruff."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--target-version", "py311"]
    # F704: pages may await at the top level, as a notebook does.
    rules = ["--select", "F", "--ignore", "F704", "--output-format", "concise", "--quiet", "-"]
    done = subprocess.run([*command, *rules], input=code, capture_output=True, text=True)
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize("name", [n for n, p in zip(NAMES, PAGES, strict=True) if blocks(p)])
def test_every_block_runs_without_the_blocks_before_it(name: str) -> None:
    """Readers copy one block: it has its imports and defines what it uses."""
    pytest.importorskip(
        "ruff", reason="NOT TESTED, the blocks of the guides: ruff is not installed"
    )
    shown = [b for b in blocks(ROOT / name) if b.language == "python" and not b.hidden]
    assert {b.where: found for b in shown if (found := complaints(b.text))} == {}


def test_missing_names_of_a_block_are_detected() -> None:
    pytest.importorskip(
        "ruff", reason="NOT TESTED, the blocks of the guides: ruff is not installed"
    )
    assert "F821 Undefined name `Consumer`" in complaints("consumer = Consumer()\n")
    assert "F401" in complaints("import kafkagroup\n")
    assert complaints("import kafkagroup\n\nawait kafkagroup.run()\n") == ""


def test_every_block_has_a_checked_language() -> None:
    for page in PAGES:
        known = {"python", "sh", "toml", "text", "yaml"}
        assert {block.language for block in blocks(page)} <= known, page


OUTPUTS = [block for page in PAGES for block in blocks(page) if block.language == "text"]


@pytest.mark.parametrize(
    "block", OUTPUTS, ids=[f"{block.where} by {block.held or 'nothing'}" for block in OUTPUTS]
)
def test_every_output_comes_from_a_run(block: Block) -> None:
    assert block.held, f"{block.where}: this output may be invented; see above how to compare it"


def test_every_block_is_found() -> None:
    """What is no block of `blocks` would be compared with nothing."""
    for page in PAGES:
        assert not re.search(r"^ *(```|~~~)|(?<=\n\n) {4,}\S", prose(page), re.MULTILINE), page


def test_an_output_without_a_run_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doc_blocks, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```text\nhealthy\n```\n<!-- run output: said -->\n```text\nhealthy\n```\n")
    assert [block.held for block in blocks(page)] == ["", "output"]


SHOWN = """<!-- run
said = ["healthy", "took 0.3 s"]
-->
<!-- run output: said -->
```text
healthy
took 0.1 s
```
```text
$ printf 'b\\na\\n'; (exit 3)
b
a
$ echo $?
3
```
"""


@pytest.mark.parametrize(
    ("right", "wrong"), [("healthy\ntook", "unhealthy\ntook"), ("b\na\n", "a\nb\n"), ("\n3", "\n0")]
)
def test_an_invented_output_fails(
    right: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doc_blocks, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(SHOWN)
    run_page(page)
    assert SHOWN.count(right) == 1
    page.write_text(SHOWN.replace(right, wrong))
    with pytest.raises(AssertionError, match="and a run prints"):
        run_page(page)


def shell_lines() -> list[tuple[str, str]]:
    """Return location and command: lines of shell, and those after a prompt with their output."""
    found = []
    for page in PAGES:
        for block in blocks(page):
            if block.title:
                continue  # of a page with a test of its own
            for line in block.text.splitlines():
                if block.language == "sh":
                    found.append((block.where, line))
                elif block.language == "text" and line.startswith("$ "):
                    found.append((block.where, line.removeprefix("$ ")))
    return found


def test_profiles_are_read_by_the_command_line(tmp_path: Path) -> None:
    shown = [block for page in PAGES for block in blocks(page) if block.language == "toml"]
    assert shown
    for number, block in enumerate(shown):
        file = tmp_path / f"{number}.toml"
        file.write_text(block.text, "utf-8")
        tables = tomllib.loads(block.text)
        for name in (*(None for _ in tables.keys() & {"default"}), *tables.get("profiles", ())):
            path, said = load_profile(str(file), name)
            assert (path, bool(said)) == (file, True), block.where


@pytest.mark.parametrize(("where", "line"), shell_lines())
def test_a_command_exists_and_accepts_its_arguments(where: str, line: str, tmp_path: Path) -> None:
    # Files are named from the top, or were written by the command before.
    *_, words = (shlex.split(part, comments=True) for part in line.split(" | "))
    for written in (word for word in words if re.fullmatch(r"\w+\.json", word)):
        (tmp_path / written).touch()
    match words:
        case ["make", target, *_]:
            makefile = (ROOT / "Makefile").read_text("utf-8")
            assert re.search(rf"^{re.escape(target)}:.* ## ", makefile, re.MULTILINE), where
        case ["pip", "install", requirement, *_]:
            name, _, extras = requirement.rstrip("]").partition("[")
            project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
            assert name in ("kafkagroup", "/path/to/checkout"), where
            assert set(filter(None, extras.split(","))) <= {*project["optional-dependencies"]}
        case ["kafkagroup", *arguments]:
            understand(arguments)
        case ["eval", completion]:
            assert completion == "$(_KAFKAGROUP_COMPLETE=bash_source kafkagroup)"
        case ["uvicorn" | "gunicorn", "service:app", *_]:
            pass  # `test_recipes.py` runs them
        case ["echo", "$?"] | ["cd" | "mkdir" | ".", *_] | ["python3", "-m", "venv", _]:
            pass
        case _:
            pytest.fail(f"{where}: this test cannot check {line!r}")


def understand(arguments: list[str]) -> None:
    """Let the command line parse the arguments, and do nothing."""
    command: click.Command = app
    name = "kafkagroup"
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        name = arguments[0]
        found = command.get_command(click.Context(command), name)
        assert found is not None, f"there is no {name}"
        command, arguments = found, arguments[1:]
    if arguments == ["--help"]:
        return
    settings = {**app.context_settings, **command.context_settings}
    with command.make_context(name, list(arguments), **settings):
        pass


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_up_to_date(name: str) -> None:
    """To update it: `python docs/site/pictures.py`."""
    assert (FOLDER / name).read_text("utf-8") == PICTURES[name]()


def luminance(colour: str) -> float:
    """Return the relative luminance of #rrggbb (WCAG 2.2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("name", PICTURES)
def test_the_text_of_a_picture_has_contrast(name: str) -> None:
    """White on orange, and the grey of the axes, could hardly be read."""
    boxes: list[tuple[float, float, float, float, str]] = []
    for shape in ElementTree.parse(FOLDER / name).getroot():
        _, _, kind = shape.tag.rpartition("}")
        x, y, width, height = (float(shape.get(k, 0)) for k in ("x", "y", "width", "height"))
        if kind == "rect":
            boxes.append((x, y, width, height, shape.get("fill", "")))
        if kind == "text":
            x, y = x + {"start": 4, "end": -4}.get(shape.get("text-anchor", ""), 0), y - 4
            behind = next(
                f for bx, by, w, h, f in reversed(boxes) if 0 <= x - bx <= w and 0 <= y - by <= h
            )
            low, high = sorted(map(luminance, (shape.get("fill", ""), behind)))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (shape.text, shape.get("fill"), behind)


def test_every_linked_picture_exists() -> None:
    shown = set()
    for page in PAGES:
        for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text("utf-8")):
            assert (page.parent / picture).is_file(), (page, picture)
            shown.add(Path(picture).name)
    assert set(PICTURES) <= shown


def test_links_to_files_exist() -> None:
    """mkdocs checks only links between its pages."""
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert (page.parent / link).exists(), f"{page}: {link}"


def test_cooperative_members_keep_partitions_that_do_not_move() -> None:
    """What the page says about the picture holds for its run."""
    eager = timeline.run_timeline(range_assignor).unowned()
    cooperative = timeline.run_timeline(cooperative_sticky_assignor).unowned()
    assert all(gap > 0 for gap in eager.values())
    assert sorted(gap > 0 for gap in cooperative.values()) == [False] * 4 + [True] * 2
    assert max(cooperative.values()) < max(eager.values()) / 4


def test_every_option_is_listed_as_declared() -> None:
    """To update it: `python docs/site/made.py`."""
    for page, listed in made.OPTIONS.items():
        assert page.read_text("utf-8").endswith("\n\n" + listed())


def test_the_readme_is_short_and_its_figures_match_the_guides() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 250
    assert made.ratios() in text
    assert made.rebalances() in text


def test_a_newcomer_sees_what_it_is_ten_lines_and_how_to_install_it_first() -> None:
    """In the README, and on the first screen of the pages."""
    for name in ("README.md", "docs/index.md"):
        program, install, *_ = (b for b in blocks(ROOT / name) if not b.hidden)
        assert (program.language, len(program.text.splitlines())) == ("python", 12), name
        assert install.text == "pip install '/path/to/checkout[cli]'\n", name
        assert install.line < 60, name
        assert "no release yet" in (ROOT / name).read_text("utf-8").partition(install.text)[0]


def test_every_error_has_a_meaning_and_a_remedy() -> None:
    page = made.errors_one_by_one()
    for name in set(errors.__all__) - {"ErrorCode", "InsecureConnectionWarning"}:
        said, _, remedy = page.partition(f"## {name}\n\n")[2].partition("**What to do.** ")
        assert said.strip(), name
        assert remedy.strip(), name


def test_metrics_are_listed_by_their_prometheus_names() -> None:
    listed = set(re.findall(r"`(kafkagroup_\w+)`", made.metrics()))
    families = GroupCollector({}).describe()
    assert listed == {f.name + "_total" * (f.type == "counter") for f in families}


def test_every_command_has_its_help() -> None:
    page = made.commands()
    for name in app.list_commands(click.Context(app)):
        assert f"Usage: kafkagroup {name} " in page


def test_every_public_name_is_in_the_reference() -> None:
    pages = "".join(p.read_text("utf-8") for p in (ROOT / "docs" / "api").glob("*.md"))
    listed = set(re.findall(r"^::: kafkagroup\.(\w+)$", pages, re.MULTILINE))
    missing = {n for n in kafkagroup.__all__ if n not in listed and n not in errors.__all__}
    assert not missing
