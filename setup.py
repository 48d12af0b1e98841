"""Build the package, and compile the modules in `SOURCES` if Cython and a C compiler are present.

Without them the same files run as Python. Either all of these modules are compiled or none, because
compiled classes access each other's fields in C. KAFKAGROUP_PURE=1 compiles none: the wheel is then
for every platform. Set when the program runs, it ignores the compiled modules.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

SOURCES = (
    "kafkagroup/_record.py",
    "kafkagroup/wire/buffers.py",
    "kafkagroup/wire/murmur2.py",
    "kafkagroup/wire/records.py",
    "kafkagroup/wire/batch_writing.py",
    "kafkagroup/wire/arrow.py",
    "kafkagroup/wire/arrow_writing.py",
    "kafkagroup/produce/batch.py",
    "kafkagroup/produce/topic_queues.py",
    "kafkagroup/produce/accumulator.py",
    "kafkagroup/consume/delivery_permit.py",
    "kafkagroup/consume/progress.py",
    "kafkagroup/consume/acknowledgement.py",
    "kafkagroup/consume/conversion.py",
    "kafkagroup/consume/delivery.py",
    "kafkagroup/runtime/consume/reader.py",
    "kafkagroup/runtime/produce/batch_end.py",
    "kafkagroup/runtime/produce/record_future.py",
)
"""The modules to compile. Beside each, a .pxd file declares the C types."""

CHECKED_FILES = (*SOURCES, *(name.replace(".py", ".pxd") for name in SOURCES))
"""The files that must not change after the modules were compiled in place."""

IN_PLACE_LIST = Path("kafkagroup", "_in_place.txt")
"""Lists the files from which the modules were compiled in place. Each line has the suffix of the
compiled modules, which names the Python version, then a file and its CRC-32. `import kafkagroup`
compares the CRCs with those of the files."""


class BuildPy(build_py):
    """Removes the modules that an earlier build compiled: the wheel would include them."""

    def run(self) -> None:
        for path in Path(self.build_lib).rglob("*"):
            if path.suffix in (".so", ".pyd"):
                path.unlink()
        super().run()


class BuildExt(build_ext):
    """Compiles all modules or none."""

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
            # Types come from the .pxd files: annotations are for readers and type checkers.
            # Importing the modules does not enable the GIL of a free-threaded Python:
            # docs/embedding.md says what threads share.
            compiler_directives={"annotation_typing": False, "freethreading_compatible": True},
        )
        self.parallel = True
        super().finalize_options()

    def run(self) -> None:
        # Python's own flags have a `-g`: with debug information the wheel has 10 MB. They are
        # repeated here, because in recent releases of setuptools CFLAGS takes their place: without
        # an `-O` the modules are half as fast. The user's CFLAGS come last: they still apply.
        own, users = sysconfig.get_config_var("CFLAGS") or "", os.environ.get("CFLAGS", "")
        os.environ["CFLAGS"] = f"{own} -g0 {users}"
        try:
            super().run()
        except Exception as error:  # each compiler raises other exceptions
            warn_not_compiled(f"the compiler failed: {error}")
            self.extensions = []
        suffix, in_place = self.get_ext_filename(""), self.inplace or self.editable_mode
        is_compiled = bool(self.extensions)
        remove_stale_modules(Path() if in_place else Path(self.build_lib), suffix, is_compiled)
        if in_place:
            write_in_place_list(suffix, is_compiled)


def remove_stale_modules(root: Path, suffix: str, is_compiled: bool) -> None:
    """Remove the compiled modules that this build did not compile. Python prefers a compiled module
    to its source, so one of an earlier build would hide a source that has changed since."""
    kept = {Path(root, name).with_suffix(suffix) for name in SOURCES} if is_compiled else set()
    for path in Path(root, "kafkagroup").rglob(f"*{suffix}"):
        if path not in kept:
            path.unlink()


def write_in_place_list(suffix: str, is_compiled: bool) -> None:
    """Replace this Python's lines of `IN_PLACE_LIST`; keep those of other Python versions."""
    lines = IN_PLACE_LIST.read_text("utf-8").splitlines() if IN_PLACE_LIST.exists() else []
    lines = [line for line in lines if not line.startswith(f"{suffix} ")]
    if is_compiled:
        lines += [
            f"{suffix} {name} {zlib.crc32(Path(name).read_bytes())}" for name in CHECKED_FILES
        ]
    IN_PLACE_LIST.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def extensions() -> list[Extension]:
    """Return the modules to compile: all, or none."""
    if os.environ.get("KAFKAGROUP_PURE"):
        warn_not_compiled("KAFKAGROUP_PURE is set")
        return []
    try:
        import Cython.Build  # noqa: F401
    except ImportError:
        warn_not_compiled("Cython is not installed")
        return []
    try:
        try_compiler()
    except Exception as error:
        warn_not_compiled(f"no C compiler for this Python: {error}")
        return []
    return [Extension(module_name(source), [source]) for source in SOURCES]


def module_name(source: str) -> str:
    """Return the dotted name of the module in a source file."""
    return source.removesuffix(".py").replace("/", ".")


def try_compiler() -> None:
    """Compile one line of C that includes this Python's headers. Raises: the compiler's error."""
    with TemporaryDirectory() as directory:
        source = Path(directory, "probe.c")
        source.write_text("#include <Python.h>\n", "utf-8")
        command = build_ext(Distribution({"ext_modules": [Extension("probe", [str(source)])]}))
        command.build_temp = command.build_lib = directory
        command.ensure_finalized()
        command.run()


def warn_not_compiled(reason: str) -> None:
    """Print that nothing is compiled, and why: the library works, but is slower."""
    print(f"kafkagroup is NOT COMPILED: {reason}", file=sys.stderr)


def long_description() -> str:
    """Return the README, with each link into the repository replaced by its path: on a package
    index such links lead nowhere."""
    text = Path("README.md").read_text("utf-8")
    text = re.sub(r"^<!-- .*?-->\n", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\[([^\]]+)\]\((?!https://)([^)#]+)[^)]*\)", r"\1 (`\2`)", text)
    note = "Paths in parentheses are files of the source distribution."
    return text.replace("\n## ", f"\n{note}\n\n## ", 1)


if __name__ == "__main__":
    setup(
        ext_modules=extensions(),
        cmdclass={"build_ext": BuildExt, "build_py": BuildPy},
        long_description=long_description(),
        long_description_content_type="text/markdown",
    )
