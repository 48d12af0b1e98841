"""Builds the hot path with Cython where that and a C compiler are at hand, and does without where
they are not: what cannot be compiled runs as the Python that it is.

All of it is compiled or nothing, as the parts share their fields. KAFKAGROUP_PURE=1 asks for
nothing, and what is installed then is for every platform; when kafkagroup runs it means the same.
"""

from __future__ import annotations

import os
import re
import sys
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

SOURCES = (
    "kafkagroup/_record.py",
    "kafkagroup/wire/records.py",
    "kafkagroup/wire/arrow.py",
    "kafkagroup/consume/lease.py",
    "kafkagroup/consume/progress.py",
    "kafkagroup/consume/conversion.py",
    "kafkagroup/consume/delivery.py",
    "kafkagroup/runtime/reader.py",
)
"""What is compiled; a .pxd beside each has its types."""

READ = (*SOURCES, *(name.replace(".py", ".pxd") for name in SOURCES))

IN_PLACE = Path("kafkagroup", "_in_place.txt")
"""Says, beside modules that were compiled in place, of which sources they were made: each line has
the ending of the modules' names, a source, and its CRC-32. `import kafkagroup` holds it against the
sources."""


class BuildPy(build_py):
    """Begins without the modules that another build compiled: they would slip into a wheel."""

    def run(self) -> None:
        for old in Path(self.build_lib).rglob("*"):
            if old.suffix in (".so", ".pyd"):
                old.unlink()
        super().run()


class BuildExt(build_ext):
    """Compiles everything or nothing."""

    def finalize_options(self) -> None:
        if not self.distribution.ext_modules:
            super().finalize_options()
            return
        from Cython.Build import cythonize

        self.distribution.ext_modules = cythonize(
            list(SOURCES),
            language_level=3,
            build_dir="build/cython",
            quiet=True,
            # The types are those of the .pxd files; annotations are for people and type checkers.
            # A free-threaded Python keeps its GIL off: docs/embedding.md says what threads share.
            compiler_directives={"annotation_typing": False, "freethreading_compatible": True},
        )
        self.parallel = True
        super().finalize_options()

    def run(self) -> None:
        # Python passes on the `-g` that it was built with: with debug information the wheel has
        # 10 MB. The builder's CFLAGS come after this, and a `-g` of theirs prevails.
        os.environ["CFLAGS"] = f"-g0 {os.environ.get('CFLAGS', '')}"
        try:
            super().run()
        except Exception as error:  # compilers fail in ways of their own
            say_not(f"the compiler failed: {error}")
            self.extensions = []
        ending, in_place = self.get_ext_filename(""), self.inplace or self.editable_mode
        clear(Path() if in_place else Path(self.build_lib), ending, bool(self.extensions))
        if in_place:
            remember(ending, bool(self.extensions))


def clear(root: Path, ending: str, compiled: bool) -> None:
    """Remove the compiled modules that were not compiled now. Python takes a compiled module before
    its source, also where that is compiled no longer: the old one would hide the new source."""
    kept = {Path(root, name).with_suffix(ending) for name in SOURCES} if compiled else set()
    for old in Path(root, "kafkagroup").rglob(f"*{ending}"):
        if old not in kept:
            old.unlink()


def remember(ending: str, compiled: bool) -> None:
    """Keep what the modules in place were made of, of this Python and of others."""
    lines = IN_PLACE.read_text("utf-8").splitlines() if IN_PLACE.exists() else []
    lines = [line for line in lines if not line.startswith(f"{ending} ")]
    if compiled:
        lines += [f"{ending} {name} {zlib.crc32(Path(name).read_bytes())}" for name in READ]
    IN_PLACE.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def module(source: str) -> str:
    return source.removesuffix(".py").replace("/", ".")


def wanted() -> list[Extension]:
    """What to compile: everything, or nothing."""
    if os.environ.get("KAFKAGROUP_PURE"):
        say_not("KAFKAGROUP_PURE is set")
        return []
    try:
        import Cython.Build  # noqa: F401
    except ImportError:
        say_not("Cython is not installed")
        return []
    try:
        probe()
    except Exception as error:
        say_not(f"no C compiler for this Python: {error}")
        return []
    return [Extension(module(name), [name]) for name in SOURCES]


def probe() -> None:
    """Compile a line of C against this Python. Only trying tells whether it works."""
    with TemporaryDirectory() as place:
        source = Path(place, "probe.c")
        source.write_text("#include <Python.h>\n", "utf-8")
        command = build_ext(Distribution({"ext_modules": [Extension("probe", [str(source)])]}))
        command.build_temp = command.build_lib = place
        command.ensure_finalized()
        command.run()


def say_not(reason: str) -> None:
    """Tell that it runs, but slower."""
    print(f"kafkagroup is NOT COMPILED: {reason}", file=sys.stderr)


def long_description() -> str:
    """The README. A package index cannot follow links into the repository: they become paths."""
    text = Path("README.md").read_text("utf-8")
    text = re.sub(r"^<!-- .*?-->\n", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\[([^\]]+)\]\((?!https://)([^)#]+)[^)]*\)", r"\1 (`\2`)", text)
    note = "Paths in parentheses are files of the source distribution."
    return text.replace("\n## ", f"\n{note}\n\n## ", 1)


if __name__ == "__main__":
    setup(
        ext_modules=wanted(),
        cmdclass={"build_ext": BuildExt, "build_py": BuildPy},
        long_description=long_description(),
        long_description_content_type="text/markdown",
    )
