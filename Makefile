# `make demo` and `make test` work on a fresh machine with Python 3.10+ (and Java 17+, for Spark).
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Many tests wait for servers and deadlines: on two cores four workers are faster than two or three.
WORKERS ?= 4
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile
READY  := $(VENV)/.ready
PORT   ?= 3000
SECONDS ?= 600

# Each stage has its own records.
export DAGSTER_HOME ?= $(CURDIR)/.dagster$(if $(filter-out local,$(SMALTI_STAGE)),-$(SMALTI_STAGE))
export DAGSTER_DISABLE_TELEMETRY = 1
# Waiting threads of torch spin for some 50 microseconds and then sleep: fast on idle cores and on busy ones.
export OMP_WAIT_POLICY ?= PASSIVE
export GOMP_SPINCOUNT ?= 1000
# Tests and the demo start hundreds of processes: the library is compiled once and not by each of them.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo ui test test-fast test-nightly test-search test-servers test-durations test-tf check lint bench docs notebooks screenshots soak clean

help:           ## this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(READY) ## make the environment, .venv

$(READY): pyproject.toml constraints.txt tools/setup_env.py tools/peer-requirements.txt tools/servers/package-lock.json
	@$(PYTHON) tools/setup_env.py --venv $(VENV)
	@touch $@

demo: $(READY)  ## the whole job on a small drawn example, or on SOURCE=<folder, archive or URL> (ARGS="--help" for more)
	@$(BIN)/python -m pipelines.demo $(if $(SOURCE),--source "$(SOURCE)") $(ARGS)

ui: $(READY)    ## Dagster's UI on http://127.0.0.1:3000 (PORT=... for another port)
	@$(BIN)/python -m pipelines.home
	@$(BIN)/dagster dev -h 127.0.0.1 -p $(PORT) -w workspace.yaml

test: $(READY)  ## every test, with the same cases each time
	@$(PYTEST) $(ARGS)

test-fast: $(READY) ## the tests of the inner loop, in a few minutes
	@$(PYTEST) -m "not slow" -q

test-nightly:   ## test-search and test-servers, each even if the other fails
	@$(MAKE) --no-print-directory --keep-going test-search test-servers

test-search: $(READY) ## all searches with a fresh seed, which is printed (SMALTI_SEED=7 for that one)
	@SMALTI_NIGHTLY=1 SMALTI_SEED=$${SMALTI_SEED:-$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')} $(PYTEST) -m search $(ARGS)

test-servers: $(READY) ## Ceph's gateway, OpenSSH and PostgreSQL, unpacked from Debian's packages; MLflow's server, in .venv/mlflow; files of packages
	@$(BIN)/python tools/debian_servers.py
	@$(BIN)/python tools/corpora.py
	@$(BIN)/pip install -q -c constraints.txt playwright
	@test -x $(VENV)/mlflow/bin/python || $(PYTHON) -m venv $(VENV)/mlflow
	@$(VENV)/mlflow/bin/pip install -q 'mlflow==3.17.2'
	@SMALTI_NIGHTLY=1 $(BIN)/python -m pytest tests/nightly tests/benchmarks/test_soak_run.py -q
	@SMALTI_NIGHTLY=1 $(PYTEST) -m "nightly and not search" -q

test-durations: $(READY) ## every test, and how long each file takes into tests/durations.json
	@SMALTI_TEST_DURATIONS=1 $(PYTEST)

test-tf:        ## the tests of tf.data, in an environment of their own, .venv/tf (2 GB)
	@test -x $(VENV)/tf/bin/python || $(PYTHON) -m venv $(VENV)/tf
	@$(VENV)/tf/bin/pip install -q tensorflow-cpu 'pandas<3' pytest pytest-timeout hypothesis -e .
	@$(VENV)/tf/bin/python -m pytest tests/compat/test_tf_data.py -q

lint: $(READY)  ## format, lint, types, layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

check: lint test-fast ## everything that must be green at every commit

bench: $(READY) ## Smalti beside its peers, in one run: results in benchmarks/results (ARGS="--quick", see benchmarks/README.md)
	@$(BIN)/python -m benchmarks setup
	@$(BIN)/python -m benchmarks $(ARGS)

docs: $(READY)  ## the documentation site, in build/site (ARGS=serve: at http://127.0.0.1:8000, renewed at each change)
	@$(BIN)/python tools/site/drawings.py > /dev/null
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(if $(ARGS),$(ARGS),build --strict --quiet)
	@echo "build/site/index.html"

notebooks: $(READY) ## run the notebooks and store their outputs (ARGS="notebooks/flowers.ipynb" for one)
	@$(BIN)/python tools/notebooks.py $(ARGS)

screenshots: $(READY) ## docs/images/dagster-*.png, from a deployment of its own; needs Chromium
	@$(BIN)/pip install -q -c constraints.txt playwright
	@$(BIN)/python tools/screenshots.py $(ARGS)

soak: $(READY)  ## ten minutes of faults and kills under training jobs that share a cache (SECONDS=60, ARGS="--seed 7")
	@$(BIN)/python -m benchmarks.soak --seconds $(SECONDS) --results benchmarks/results $(ARGS)

clean:          ## remove what the demo, the UI and the tools left; .venv stays
	rm -rf data .dagster build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis spark-warehouse
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
