# Everything goes through .venv, built from the hashed locks. uv is taken from PATH, else put into .tools.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install dev demo browser test test-fast check model bench up down lock

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(or $(shell command -v uv 2>/dev/null),.tools/bin/uv)
TESTS ?=

help:  ## show these targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | column -t -s "$$(printf '\t')"

.tools/bin/uv: requirements-uv.txt
	@$(PYTHON) -m venv .tools || { echo "there is neither uv nor a python3 with venv and pip; install one of them" >&2; exit 2; }
	.tools/bin/python -m pip install --quiet --require-hashes --only-binary :all: -r requirements-uv.txt
	@touch $@

$(VENV)/.installed: requirements.txt pyproject.toml | $(filter .tools/bin/uv,$(UV))
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
		|| { echo "$$($(PYTHON) -V) will not do: Python 3.11 to 3.13 is needed; name one with make PYTHON=…" >&2; exit 2; }
	@test -x $(BIN)/python || $(UV) venv --quiet --python "$$(command -v $(PYTHON))" $(VENV)
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.installed-dev: requirements-dev.txt $(VENV)/.installed
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements-dev.txt
	@touch $@

install: $(VENV)/.installed  ## build .venv from requirements.txt

dev: $(VENV)/.installed-dev  ## the same with what tests and checks need

demo: install  ## land real flights, run them through Airflow to the end, stop everything
	@trap '$(BIN)/sluice down' EXIT; $(BIN)/sluice land flights && $(BIN)/sluice airflow --detach && $(BIN)/sluice trigger flights
	@echo "make up      brings up Airflow's pages over the same data"

test: dev browser  ## the whole test suite; TESTS=… narrows it
	$(BIN)/pytest -m "not slow" $(TESTS)

browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends chromium >/dev/null; } \
		|| { echo "the tests need Chromium: install Debian's package chromium, or put a chromium on PATH" >&2; exit 2; }

test-fast: dev  ## without Spark and without crashes
	$(BIN)/pytest -m "not slow" tests/unit tests/service

check: dev  ## ruff and mypy
	$(BIN)/ruff check etl tests
	$(BIN)/ruff format --check etl tests
	$(BIN)/mypy

model: dev  ## the long form of the protocol's model
	$(BIN)/python -m tests.model

bench: dev  ## the figures of docs/benchmarks.md
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.dags
	$(BIN)/python -m benchmarks.pages

up: install  ## start Airflow and the services it needs, until Ctrl-C
	$(BIN)/sluice airflow

down: install  ## stop them, whoever started them; their data stays
	$(BIN)/sluice down

LOCK = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url
lock: | $(filter .tools/bin/uv,$(UV))  ## resolve the locks again
	$(LOCK) pyproject.toml --group build -o requirements.txt
	$(LOCK) pyproject.toml --group build --group dev -c requirements.txt -o requirements-dev.txt
	echo uv | $(LOCK) - -o requirements-uv.txt
