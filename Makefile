# Two commands for a newcomer: `make demo` and `make test`. Needs Python 3.11+, Java 17+ and make.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo test check lint types imports recovery bench lock clean

setup: $(READY)

# Every package is held against its hash, every jar too (doctor says what the machine lacks).
$(READY): requirements.lock pyproject.toml conf/jars.lock
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/tidelake doctor --fetch
	touch $(READY)

demo: setup
	$(BIN)/tidelake demo

# Two workers, each with a JVM: planning keeps one core busy and leaves the other free.
WORKERS ?= 2
test: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

check: lint types imports test

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

# Long runs. KILLS is the number of times that the process group is killed, RACES of two runs at
# once, CORRUPTIONS of damaged files of checkpoints, CHAINS of deaths in recoveries, LEVELS of
# fullness of a disk, EXAMPLES of streams that are drawn for each property, OUTAGES of a broker,
# LOST of topics that lost records, TRANSACTIONS in a topic, KAFKA_EVENTS of records that come
# through the death of broker and driver. RESUME is a folder that keeps the kills, and goes on with
# them.
KILLS ?= 100
RACES ?= 20
CORRUPTIONS ?= 200
CHAINS ?= 20
LEVELS ?= 20
EXAMPLES ?= 50
OUTAGES ?= 50
LOST ?= 20
TRANSACTIONS ?= 1000
KAFKA_EVENTS ?= 1000000
RESUME ?=
REPORT := build/recovery.json
recovery: export TIDELAKE_REPORT = $(REPORT)
recovery: setup
	rm -f $(REPORT)
	$(BIN)/python -m tests.recovery.break_tables
	TIDELAKE_KILLS=$(KILLS) TIDELAKE_RESUME=$(RESUME) TIDELAKE_CORRUPTIONS=$(CORRUPTIONS) \
		TIDELAKE_OUTAGES=$(OUTAGES) TIDELAKE_LOST=$(LOST) TIDELAKE_TRANSACTIONS=$(TRANSACTIONS) \
		$(BIN)/python -m pytest -s tests/recovery
	TIDELAKE_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -s tests/streaming/test_properties.py
	TIDELAKE_GOLD_EXAMPLES=1000 $(BIN)/python -m pytest -s tests/streaming/test_gold_properties.py tests/streaming/test_dimensions.py
	TIDELAKE_RACES=$(RACES) TIDELAKE_CHAINS=$(CHAINS) TIDELAKE_LEVELS=$(LEVELS) \
		TIDELAKE_KAFKA_EVENTS=$(KAFKA_EVENTS) \
		$(BIN)/python -m pytest -s -m long tests/streaming tests/recovery
	$(BIN)/python -m tests.recovery.reporting $(REPORT)

bench: setup
	$(BIN)/python benchmarks/catch_up.py
	$(BIN)/python benchmarks/stateful.py --events 50000 --small 6 --repeats 1
	$(BIN)/python benchmarks/replay.py 1500000 1
	$(BIN)/python benchmarks/burst.py
	$(BIN)/python benchmarks/latency.py

# Pin anew after a change of pyproject.toml; needs uv.
lock:
	uv pip compile --quiet --no-header --generate-hashes --universal --extra local --extra kafka --extra quality --extra s3 --extra dev \
		pyproject.toml -o requirements.lock

clean:
	rm -rf .venv lakehouse dist build
