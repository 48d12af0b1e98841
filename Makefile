# `make` lists the targets. Everything is installed into virtual environments inside this folder.
# What is installed stands in tests/environments.py, and which tests run in tests/parts.py.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo check compile wheel test-fast test-packages test-lowest test test-all test-rest test-wire test-brokers test-lakes soak sim lockstep bench bench-spark bench-loop bench-pipeline pipeline fuzz fuzz-assign mutate hostile docs clean

BIN := .venv/bin
# The oldest first: what works there works on the others.
VERSIONS := 3.11 3.12 3.13
# What is compiled, where there is a C compiler.
COMPILED := $(shell sed -nE 's/^    "(kafkagroup\/.*\.py)",$$/\1/p' setup.py)
COMPILED_OR_NOT = $(BIN)/python -c 'import kafkagroup as k; print("kafkagroup is" + " not" * (not k.__compiled__), "compiled")'
# Spark is half a gigabyte, and of no use without Java.
SPARK := $(if $(shell command -v java),.venv/spark.stamp)
JARS = $(if $(SPARK),$(BIN)/python tests/jars.py,echo "NO JAVA: no test meets a real Kafka")

help: ## list the targets
	@grep -E '^[a-z-]+:.* ## ' Makefile | sed -E 's/:.* ## /\t/' | expand -t 16

demo: .venv/demo.stamp ## a group of processes in a live view; BROKER=host:port for a real broker
	@$(BIN)/python examples/demo.py $(BROKER)

setup: .venv/compiled.stamp ## all that development needs, into .venv, compiled; the other targets do it themselves
compile: .venv/compiled.stamp ## the hot path as C, where there is a compiler; says whether it is
setup compile:
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

wheel: export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
wheel: .venv/check.stamp ## a wheel for this platform, the one for all others, and an sdist, in dist/
	rm -rf dist
	$(BIN)/python -m build --quiet
	@rm -rf build/pure && mkdir -p build/pure && tar -xzf dist/*.tar.gz -C build/pure --strip 1
	KAFKAGROUP_PURE=1 $(BIN)/python -m build --quiet --wheel --outdir dist build/pure
	@ls dist

test-fast: .venv/fast.stamp ## the pure packages, in under a minute; needs no Java, no compiler and no other client
	$(BIN)/python tests/parts.py fast

test-lowest: .venv-lowest/stamp ## the quick tests on the lowest versions that pyproject.toml promises, of all its extras for users
	.venv-lowest/bin/python tests/parts.py lowest

test-packages: .venv-packages/stamp ## sdist and wheels, each built, installed and tried on every Python that is here; and test-lowest
	@.venv-packages/bin/python tests/try_packages.py
	@$(MAKE) --no-print-directory test-lowest

test: .venv/compiled.stamp $(SPARK) ## all but the long tests, on real Kafka, ZooKeeper and Spark if there is Java; 10 minutes
	@rm -f .venv/tests-*
	@$(JARS)
	$(BIN)/python tests/parts.py virtual waiting serial
	@$(BIN)/python tests/stories.py .venv/tests-*.xml
	@$(if $(SPARK),,echo "NO JAVA: no test has met a real Kafka")

test-all: test ## make test, and then the rest: long tests, simulations, planted bugs, soak, other Pythons
	@$(MAKE) --no-print-directory test-rest

test-rest: .venv/compiled.stamp $(SPARK)
	@$(JARS)
	$(BIN)/python tests/parts.py long long-serial
	@$(MAKE) --no-print-directory test-wire

test-wire: .venv/compiled.stamp
	$(BIN)/python tests/try_pythons.py $(VERSIONS)

test-wire-%: .venv/compiled.stamp
	$(BIN)/python tests/try_pythons.py $*

soak: .venv/compiled.stamp ## a million records, a pipeline where all fails, and one that is exactly once under kills, 50 minutes; SEED=n; BROKER=host:port: the first only
	$(BIN)/python tests/verification/soak/run.py $(BROKER)
	$(if $(BROKER),,$(BIN)/python tests/verification/soak/pipeline.py $(if $(SEED),--seed $(SEED)))
	$(if $(BROKER),,$(BIN)/python tests/verification/soak/exactly_once.py $(if $(SEED),--seed $(SEED)))

test-brokers: .venv/compiled.stamp ## the promise "from 2.4 on": Apache Kafka 2.4.1 and 3.9.1
	$(BIN)/python tests/parts.py brokers

test-lakes: .venv-lakes-4.1/stamp .venv-lakes-4.2/stamp ## PySpark 4.1, the oldest, with Delta and Iceberg, and 4.2 with streams into Delta
	@$(BIN)/python tests/jars.py
	.venv-lakes-4.1/bin/python tests/parts.py lakes-4.1
	.venv-lakes-4.2/bin/python tests/parts.py lakes-4.2

hostile: .venv/compiled.stamp ## brokers that mean harm: how each attack ends, its memory and time; UNTESTED=1: those that no test runs, a minute
	$(BIN)/python -m tests.verification.hostile $(if $(UNTESTED),--untested)

fuzz: .venv/compiled.stamp ## mutated answers through every decoder; CASES=n, SEED=n
	$(BIN)/python tests/verification/hostile/fuzz.py --cases $(or $(CASES),10000000) $(if $(SEED),--seed $(SEED))

fuzz-assign: .venv/check.stamp ## a million generated groups through every assignor; CASES=n, SEED=n
	$(BIN)/python tests/assign/fuzz.py --cases $(or $(CASES),1000000) $(if $(SEED),--seed $(SEED))

sim: .venv/compiled.stamp ## 10,000 simulated runs of groups, each checked; PROTOCOL=consumer for KIP-848; BROKER=apache for Kafka's own coordinator; HISTORIES=n, START=seed, KEEP=file to resume
	$(BIN)/python -m tests.verification.sim --protocol $(or $(PROTOCOL),classic) $(if $(BROKER),--broker $(BROKER)) --histories $(or $(HISTORIES),10000) --start $(or $(START),0) $(if $(KEEP),--resume $(KEEP))
	$(BIN)/python -m tests.verification.sim --bugs $(if $(BROKER),--broker $(BROKER))

mutate: .venv/check.stamp ## small changes of a module that no test notices; MODULE=file, TESTS=files, COUNT=n, SEED=n, LINES=first-last, LIMIT=seconds
	$(BIN)/python tests/mutate.py $(MODULE) $(TESTS) --count $(or $(COUNT),30) --seed $(or $(SEED),0) $(if $(LINES),--lines $(LINES)) $(if $(LIMIT),--limit $(LIMIT))

lockstep: .venv/compiled.stamp ## 100,000 scripts of random requests to Apache's coordinator and the embedded one; CASES=n, START=seed
	$(BIN)/python -m tests.verification.lockstep --cases $(or $(CASES),100000) --start $(or $(START),0)

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
	@python=$$(sh tests/usable_python.sh $(or $(PYTHON),$(VERSIONS) python3 python)) && "$$python" -m venv .venv

.venv/compiled.stamp: setup.py $(COMPILED) $(COMPILED:.py=.pxd) .venv/check.stamp
	@echo "compiling the hot path"
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@$(COMPILED_OR_NOT)
	@touch $@

.venv/spark.stamp .venv/bench.stamp .venv-lakes-4.1/stamp .venv-lakes-4.2/stamp: .venv/compiled.stamp
.venv/demo.stamp .venv/fast.stamp .venv/check.stamp .venv/spark.stamp .venv/bench.stamp .venv-lakes-4.1/stamp .venv-lakes-4.2/stamp .venv-pipeline/stamp: pyproject.toml constraints.txt
.venv-lowest/stamp: pyproject.toml tests/lowest.py
.venv-packages/stamp: constraints.txt

# An environment in a folder of its own is made by the Python of .venv.
.venv/%.stamp: | .venv/bin/python
	@$(BIN)/python tests/environments.py $*
.venv-%/stamp: | .venv/bin/python
	@$(BIN)/python tests/environments.py $*
