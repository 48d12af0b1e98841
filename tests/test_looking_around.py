"""A look at the package works without any extra: `help()`, completion, `from ... import *`.

Each program runs where only the dependencies of `pyproject.toml` can be imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kafkagroup

ROOT = Path(kafkagroup.__file__).parents[1]

PACKAGES = [
    "kafkagroup",
    *sorted(
        f"kafkagroup.{path.parent.name}"
        for path in (ROOT / "kafkagroup").glob("[a-z]*/__init__.py")
    ),
    "kafkagroup.exporters.opentelemetry",
    "kafkagroup.exporters.prometheus",
]

BLOCKED = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

MISSING = set("click kazoo matplotlib numpy opentelemetry pandas prometheus_client pyarrow".split())
MISSING |= set("pyspark pytest rich trio".split())
sys.meta_path.insert(0, Missing())
"""
"""Hides the libraries of all extras."""


def run(program: str) -> str:
    """Return what a new interpreter prints that has none of the extras."""
    done = subprocess.run([sys.executable, "-c", BLOCKED + program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_libraries_of_all_extras_are_hidden() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    users = (
        "arrow",
        "cli",
        "demo",
        "opentelemetry",
        "pipeline",
        "prometheus",
        "spark",
        "zookeeper",
    )
    wanted = {
        line.partition("[")[0].partition(">")[0] for extra in users for line in extras[extra]
    } - {"kafkagroup"}
    names = {"opentelemetry-api": "opentelemetry", "prometheus-client": "prometheus_client"}
    hidden = json.loads(run("import json\nprint(json.dumps(sorted(MISSING)))"))
    assert {names.get(name, name) for name in wanted} <= set(hidden)


LOOK = """
import copy, importlib, inspect, pickle, pydoc, rlcompleter, traceback, typing

def look(package):
    module = importlib.import_module(package)
    pydoc.render_doc(module)
    pydoc.render_doc(package)
    inspect.getmembers(module)
    names = {}
    exec(f"from {package} import *", names)
    exec(f"import {package}", names)
    completer = rlcompleter.Completer(names)
    completer.attr_matches(f"{package}.")
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        assert value is getattr(module, name), name
        assert hasattr(module, name) and name in dir(module)
        assert names[name] is value
        pydoc.render_doc(value)
        inspect.getdoc(value), repr(value), hash(value), bool(value)
        hasattr(value, "__wrapped__"), hasattr(value, "anything"), dir(value)
        assert getattr(value, "anything", None) is None
        if isinstance(value, type) and not typing.is_typeddict(value):
            assert not isinstance(1, value) and not issubclass(int, value)
            inspect.getmembers(value)
        copy.copy(value), copy.deepcopy(value)
        if type(value).__module__ in ("builtins", "abc", "enum"):
            assert pickle.loads(pickle.dumps(value)) is value, name
        completer.attr_matches(f"{package}.{name}.")
"""


def test_the_packages_can_be_looked_at_without_extras() -> None:
    """One missing library hid all other names: each of these calls raised ImportError."""
    program = f"""
for package in {PACKAGES}:
    try: look(package)
    except Exception as error: print(package, "".join(traceback.format_exception(error)))
"""
    assert run(LOOK + program) == ""


def test_the_names_of_a_missing_extra_are_in_the_help() -> None:
    shown = run("import kafkagroup.spark, pydoc\nprint(pydoc.render_doc(kafkagroup.spark))")
    needs = "kafkagroup.spark.CommitListener needs the extra spark: pip install 'kafkagroup[spark]'"
    assert needs in shown


USES = {
    "kafkagroup.ZooKeeperMembership('zk:2181')": "zookeeper",
    "kafkagroup.spark.register(None)": "spark",
    "kafkagroup.spark.CommitListener(group_id='g')": "spark",
    "type('Mine', (kafkagroup.spark.CommitListener,), {})": "spark",
    "abc.ABCMeta('Mine', (kafkagroup.spark.CommitListener, abc.ABC), {})": "spark",
    "kafkagroup.exporters.prometheus.GroupCollector({})": "prometheus",
    "kafkagroup.exporters.opentelemetry.observe({}, None)": "opentelemetry",
}


def test_a_use_of_a_missing_extra_says_what_to_install() -> None:
    program = f"""
import abc, kafkagroup, kafkagroup.spark
import kafkagroup.exporters.prometheus, kafkagroup.exporters.opentelemetry
# Installed here; its version would be called too old.
import kafkagroup.zookeeper.needs as needs
def version(name): raise needs.PackageNotFoundError
needs.version = version
for use, extra in {USES}.items():
    try: eval(use)
    except ImportError as error:
        if f"pip install 'kafkagroup[{{extra}}]'" not in str(error): print(use, error)
    else: print(use)
"""
    assert run(program) == ""


def test_an_attribute_of_a_missing_extra_says_what_to_install() -> None:
    """Only an AttributeError can say it: `hasattr` has to work."""
    shown = run(
        "import kafkagroup.spark\n"
        "try: kafkagroup.spark.CommitListener.from_x\n"
        "except AttributeError as error: print(error)"
    )
    assert shown.startswith(
        "kafkagroup.spark.CommitListener needs the extra spark: pip install 'kafkagroup[spark]'"
    )


def test_a_fault_of_the_library_is_not_taken_for_a_missing_extra() -> None:
    program = """
import sys, kafkagroup.spark
sys.modules["kafkagroup.spark.source"] = None
try: kafkagroup.spark.register
except ImportError as error: print(error.name)
"""
    assert run(program) == "kafkagroup.spark.source\n"


def test_an_extra_that_is_installed_meanwhile_is_found() -> None:
    """As after `%pip install` in a notebook."""
    pytest.importorskip("pyspark")
    program = """
import kafkagroup.spark
missing = kafkagroup.spark.Spread
sys.meta_path.pop(0)
print(missing is kafkagroup.spark.Spread, kafkagroup.spark.Spread(1.0, 2.0, 3.0))
"""
    assert run(program) == "False Spread(min=1.0, avg=2.0, max=3.0)\n"
