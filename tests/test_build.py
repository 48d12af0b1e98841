"""The contents of builds: compiled or for every platform, without files of earlier builds."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from zipfile import ZipFile

import pytest

import kafkagroup

ROOT = Path(kafkagroup.__file__).parents[1]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("build") is None or importlib.util.find_spec("setuptools") is None,
    reason="nothing to build with",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of the sources."""
    copy = tmp_path / "tree"
    kept = shutil.ignore_patterns("*.so", "__pycache__", "_in_place.txt")
    shutil.copytree(ROOT / "kafkagroup", copy / "kafkagroup", ignore=kept)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


def build(tree: Path, *options: str, **environment: str) -> list[Path]:
    """Return the contents of dist/ after a build with the installed tools."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check"]
    subprocess.run(
        [*command, *options, str(tree)],
        env={**os.environ, **environment},
        capture_output=True,
        check=True,
    )
    return sorted((tree / "dist").iterdir())


def run(program: str, place: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=place,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "without", [{"CC": "/bin/false"}, {"KAFKAGROUP_PURE": "1"}], ids=["no compiler", "asked for"]
)
def test_without_a_compiler_the_wheel_is_for_every_platform(
    tree: Path, tmp_path: Path, without: dict[str, str]
) -> None:
    """Modules compiled by an earlier build must not be included: they were, however old."""
    stale = tree / "build" / "lib" / "kafkagroup" / f"types{EXTENSION_SUFFIXES[0]}"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"of another time")
    (wheel,) = build(tree, "--wheel", **without)
    assert wheel.name.endswith("-py3-none-any.whl")
    with ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if name.endswith((".so", ".c"))] == []
        archive.extractall(tmp_path / "installed")
    program = "import kafkagroup; print(kafkagroup.__compiled__, kafkagroup.Consumer.__name__)"
    done = run(program, tmp_path / "installed")
    assert (done.stdout, done.stderr) == ("False Consumer\n", "")


def test_the_long_description_has_no_relative_links(tree: Path, tmp_path: Path) -> None:
    """A package index has no `docs/getting-started.md`."""
    (wheel,) = build(tree, "--wheel", KAFKAGROUP_PURE="1")
    with ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("/METADATA"))
        head, _, text = archive.read(name).decode().partition("\n\n")
    assert "Description-Content-Type: text/markdown" in head
    assert text.startswith("# kafkagroup\n")
    assert "Getting started (`docs/getting-started.md`)" in text
    assert re.findall(r"\]\((?!https://)[^)]*\)", text) == []
    assert "Paths in parentheses are files of the source distribution.\n\n## " in text
    assert "<!--" not in text


def test_an_sdist_contains_everything_needed_to_compile(tree: Path) -> None:
    (sdist,) = build(tree, "--sdist", KAFKAGROUP_PURE="1")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    compiled = {path.relative_to(tree) for path in tree.rglob("*.pxd")}
    assert len(compiled) > 3
    assert {str(p) for path in compiled for p in (path, path.with_suffix(".py"))} <= names
    assert {"setup.py", "MANIFEST.in"} <= names


def test_the_package_is_imported_from_a_zip(tree: Path, tmp_path: Path) -> None:
    """Spark's --py-files ships packages as such."""
    archive = shutil.make_archive(str(tmp_path / "shipped"), "zip", tree, "kafkagroup")
    program = f"import sys; sys.path[:0] = [{archive!r}]; import kafkagroup.spark as s; print(s)"
    # As an installed package: otherwise there is no check for compiled modules.
    done = run(program, tmp_path, KAFKAGROUP_PURE="")
    assert f"{archive}/kafkagroup/spark" in done.stdout, done.stderr


def test_a_module_compiled_from_another_source_is_an_error(tree: Path) -> None:
    """An edit would have no effect, without an error."""
    program = "import kafkagroup; print('fine')"
    listed = tree / "kafkagroup" / "_in_place.txt"
    listed.write_text(f"{EXTENSION_SUFFIXES[0]} kafkagroup/_record.py 1\n")
    done = run(program, tree)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: kafkagroup/_record.py has changed since it was compiled; run `make compile`"
    )
    assert run(program, tree, KAFKAGROUP_PURE="1").stdout == "fine\n"
    listed.write_text(".another-python.so kafkagroup/_record.py 1\n")
    assert run(program, tree).stdout == "fine\n"


def sources(setup: Path) -> list[str]:
    return re.findall(r'^    "(kafkagroup/.*\.py)",$', setup.read_text("utf-8"), re.MULTILINE)


def test_a_compiled_module_missing_from_setup_py_is_an_error(tree: Path) -> None:
    """The old compiled module of a module that is no longer compiled would hide its source."""
    program = "import kafkagroup; print('fine')"
    listed = tree / "kafkagroup" / "_in_place.txt"
    listed.write_text("")
    stale = tree / "kafkagroup" / "runtime" / "consume" / f"subscriber{EXTENSION_SUFFIXES[0]}"
    stale.write_bytes(b"of another time")
    done = run(program, tree)
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {stale} is of an older build; run `make compile`"
    )
    assert run(program, tree, KAFKAGROUP_PURE="1").stdout == "fine\n"
    stale.rename(stale.with_name("subscriber.another-python.so"))
    assert run(program, tree).stdout == "fine\n"
    # It keeps modules compiled by other Python versions, even without a source.
    listed.write_text(".another-python.so kafkagroup/gone.py 1\n")
    assert run(program, tree).stdout == "fine\n"
    listed.write_text(f"{EXTENSION_SUFFIXES[0]} kafkagroup/gone.py 1\n")
    assert "kafkagroup/gone.py has changed since it was compiled" in run(program, tree).stderr


@pytest.mark.long
@pytest.mark.parametrize("compiles", [True, False], ids=["compiled", "asked for none"])
def test_building_in_place_removes_modules_no_longer_compiled(tree: Path, compiles: bool) -> None:
    """After a pull, `types` was no longer compiled, and its old module hid the new source."""
    if compiles and not kafkagroup.__compiled__:
        pytest.skip("NOT TESTED, compiling in place: kafkagroup is not compiled here")
    setup = tree / "setup.py"
    one, *others = sources(setup)
    text = setup.read_text("utf-8")
    for name in others:  # one module suffices, and compiles in seconds
        text = text.replace(f'    "{name}",\n', "")
    setup.write_text(text, "utf-8")
    for name in ("types", "runtime/subscriber", "wire/gone"):
        (tree / "kafkagroup" / f"{name}{EXTENSION_SUFFIXES[0]}").write_bytes(b"of another time")
    foreign = tree / "kafkagroup" / "types.another-python.so"
    foreign.write_bytes(b"of another Python")
    built = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"],
        cwd=tree,
        env={**os.environ, **({} if compiles else {"KAFKAGROUP_PURE": "1"})},
        capture_output=True,
        check=True,
    )
    # When CFLAGS is set, recent releases of setuptools compile without an -O: half as fast.
    assert bool(re.search(rb" -O[23s] ", built.stdout + built.stderr)) is compiles
    compiled = (tree / one).with_suffix(EXTENSION_SUFFIXES[0])
    kept = {foreign, compiled} if compiles else {foreign}
    # Debug information, for which Python's own CFLAGS may ask, made a wheel of 10 MB.
    assert not compiles or b".debug_info" not in compiled.read_bytes()
    assert set((tree / "kafkagroup").rglob("*.so")) == kept
    program = "import kafkagroup.types; print(kafkagroup.types.__file__)"
    assert run(program, tree).stdout == f"{tree / 'kafkagroup' / 'types.py'}\n"


def test_every_listed_module_is_compiled() -> None:
    """An unlisted module runs as Python and is only slower: nothing else would report it."""
    if not kafkagroup.__compiled__:
        pytest.skip("NOT TESTED, which modules are compiled: none is")
    names = [name.removesuffix(".py").replace("/", ".") for name in sources(ROOT / "setup.py")]
    assert len(names) > 3
    files = {name: importlib.import_module(name).__file__ or "" for name in names}
    assert [name for name in names if not files[name].endswith(EXTENSION_SUFFIXES[0])] == []
