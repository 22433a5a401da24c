# Two commands for a newcomer: `make demo` and `make test`. Needs Python 3.11+, Java 17+ and make.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

TOOLS := .venv/release
TOOLS_READY := $(TOOLS)/.ready

.PHONY: setup demo test check lint types imports mutations recovery recovery-page endurance endurance-page peers bench bench-page bundle dist audit workflows docs lock clean

# What is imported is compiled then: to compile every module of every package takes half a minute.
PIP := -m pip install --quiet --disable-pip-version-check --no-compile
# PySpark comes as its source, whose jars are packed into a wheel first: without compressing them.
WHEELS := .venv/wheels.cfg

setup: $(READY)

# Every package is held against its hash, every jar too (doctor says what the machine lacks).
$(READY): requirements.lock pyproject.toml conf/jars.lock
	$(PYTHON) -m venv .venv
	printf '[bdist_wheel]\ncompression = stored\n' > $(WHEELS)
	DIST_EXTRA_CONFIG="$(CURDIR)/$(WHEELS)" $(BIN)/python $(PIP) --require-hashes -r requirements.lock
	$(BIN)/python $(PIP) --no-deps --no-build-isolation -e .
	$(BIN)/tidelake doctor --fetch
	touch $(READY)

demo: setup
	$(BIN)/tidelake demo

# Workers, each with a JVM of up to 3 GB, which keeps a core busy planning: half the cores, from two
# to four.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 6 ? 2 : n < 8 ? 3 : 4)))
test: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

check: lint types imports test

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

# Each guard of the code is taken away in a copy, and the tests that should fail without it are run;
# those with Spark take long. ARGS="--only locks" tries some of them, ARGS=--list lists them.
mutations: setup
	$(BIN)/python -m tests.mutate $(ARGS)

# Long runs: the tests of recovery and all long ones, a file at a time. What has passed is not run
# again until build/recovery is deleted, so that it can be stopped and continued. KILLS is the number
# of times that the process group is killed, RACES of two runs at once, CORRUPTIONS of damaged files
# of checkpoints, CHAINS of deaths in recoveries, LEVELS of fullness of a disk, EXAMPLES of streams
# that are drawn for each property, GOLD_EXAMPLES of batches and keys of gold, EDGES of streams of
# values at the edges of their types, OUTAGES of a broker, LOST of topics that lost records,
# TRANSACTIONS in a topic, KAFKA_EVENTS of records that come through the death of broker and driver.
# FULL=1 gives tests with few rows in each change the numbers of a full run.
KILLS ?= 100
RACES ?= 20
CORRUPTIONS ?= 200
CHAINS ?= 20
LEVELS ?= 20
EXAMPLES ?= 50
GOLD_EXAMPLES ?= 1000
EDGES ?= 5
OUTAGES ?= 50
LOST ?= 20
TRANSACTIONS ?= 1000
KAFKA_EVENTS ?= 1000000
FULL ?= 1
SIZES := KILLS RACES CORRUPTIONS CHAINS LEVELS EXAMPLES GOLD_EXAMPLES EDGES OUTAGES LOST \
	TRANSACTIONS KAFKA_EVENTS FULL
recovery: setup
	$(foreach size,$(SIZES),TIDELAKE_$(size)=$($(size))) \
		$(BIN)/python -m tests.recovery --workers $(WORKERS) $(ARGS)

recovery-page: setup
	$(BIN)/python -m tests.recovery.page

# A continuous run from Kafka that is killed every EVERY seconds; at its end an oracle knows where
# each record must be. About ten minutes longer than MINUTES. The page is made of its report.
MINUTES ?= 120
RATE ?= 500
EVERY ?= 600
endurance: setup
	$(BIN)/python -m benchmarks.endurance --minutes $(MINUTES) --rate $(RATE) --every $(EVERY)

endurance-page: setup
	$(BIN)/python -m benchmarks.endurance.page

# Engines that the benchmarks compare with, each in an environment of its own, and Flink's jars.
PEERS := .venv-peers
PEER_LOCKS := $(wildcard benchmarks/peers/*.lock)
peers: $(PEERS)/.ready

$(PEERS)/.ready: $(PEER_LOCKS) | setup
	for peer in flink polars; do \
		$(PYTHON) -m venv $(PEERS)/$$peer && \
		$(PEERS)/$$peer/bin/python $(PIP) --require-hashes -r benchmarks/peers/$$peer-requirements.lock \
			|| exit 1; \
	done
	$(BIN)/python -m benchmarks.peers.jars $(PEERS)/flink/jars
	touch $@

# Rows P1 to P14, about an hour; B="P1 P7" runs those, B=burst a script by its name, and
# ARGS="--repeats 3" goes to each. The page is made of the reports in build/bench.
B ?=
ARGS ?=
bench: peers
	$(BIN)/python -m benchmarks.runner $(B) -- $(ARGS)

bench-page: setup
	$(BIN)/python -m benchmarks.report_page

# What is deployed, by the repository and by a new project: our own rules, then the schema of
# Databricks' CLI (needs Go).
bundle: setup $(TOOLS_READY)
	$(BIN)/python -m pytest -q tests/bundle
	rm -rf build/project
	$(BIN)/tidelake new build/project
	scripts/bundle_schema.sh $(TOOLS)/bin/check-jsonschema build/project

# Wheel, sdist, bill of materials and hashes in dist/; the same bytes from the same commit.
dist: $(TOOLS_READY)
	scripts/dist.sh $(TOOLS)/bin

audit: $(TOOLS_READY)
	$(TOOLS)/bin/python scripts/audit.py

# The workflows of GitHub's runners (actionlint needs Go).
workflows: $(TOOLS_READY)
	scripts/workflows.sh $(TOOLS)/bin/zizmor

$(TOOLS_READY): requirements-release.lock
	$(PYTHON) -m venv .venv/release
	$(TOOLS)/bin/python $(PIP) --require-hashes -r requirements-release.lock
	touch $(TOOLS_READY)

# The site, into build/site; it opens from the disk, and loads nothing from elsewhere. Its packages
# are many and heavy, so they have a lock and a folder of their own.
DOCS := .venv-docs/bin
docs: .venv-docs/.ready
	$(DOCS)/python -m mkdocs build --strict --quiet
	@echo "build/site/index.html opens as it is; to search in it: python3 -m http.server -b 127.0.0.1 -d build/site"

.venv-docs/.ready: docs/requirements.lock
	$(PYTHON) -m venv .venv-docs
	$(DOCS)/python $(PIP) --require-hashes -r docs/requirements.lock
	echo "$(CURDIR)/lib" > "$$($(DOCS)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tidelake.pth"
	touch $@

# Pin anew after a change of pyproject.toml; needs uv. The runtime's lock is the part of the first
# one that people run; the release's, the site's and the peers' hold their own alone.
COMPILE := uv pip compile --quiet --no-header --generate-hashes --universal
RUNTIME := --extra local --extra connect --extra kafka --extra quality --extra s3 --extra notebooks --extra metrics --extra lineage
lock:
	$(COMPILE) $(RUNTIME) --extra dev pyproject.toml -o requirements.lock
	$(COMPILE) $(RUNTIME) -c requirements.lock pyproject.toml -o requirements-runtime.lock
	$(COMPILE) --group release -c requirements.lock -o requirements-release.lock
	$(COMPILE) --extra docs pyproject.toml -o docs/requirements.lock
	$(COMPILE) --group peer-flink -o benchmarks/peers/flink-requirements.lock
	$(COMPILE) --group peer-polars -o benchmarks/peers/polars-requirements.lock

clean:
	rm -rf .venv .venv-docs .venv-peers lakehouse dist build
