# Every target sets up what it needs (tools/setup.sh): Python packages in .venv, a Java for Spark.
SHELL := bash
.DEFAULT_GOAL := help

UI_PORT ?= 3000

# Number of test processes: more than cores, since tests often wait for servers.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 5 ? n + 2 : 6)))
in_parallel = -n $(WORKERS) --dist loadscope --no-loadscope-reorder

# Keep bytecode, also if the shell turns that off: otherwise each process of a test compiles it again.
in_venv = VIRTUAL_ENV="$(CURDIR)/.venv" PATH="$(CURDIR)/.venv/bin:$$PATH" \
  JAVA_HOME="$(CURDIR)/.venv/java-home" PYTHONDONTWRITEBYTECODE=
dagster_home = mkdir -p "$(1)" && { [ -e "$(1)/dagster.yaml" ] || cp lakegc_assets/dagster.yaml "$(1)/"; }

.PHONY: help
help: ## show these targets
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' Makefile | expand -t 19

.PHONY: setup
setup: ## only install the requirements into .venv
	@tools/setup.sh
	@$(call dagster_home,.lakegc/dagster)

.PHONY: demo
demo: setup ## sweep a year-old repository of an embedded lakeFS, prove it unharmed, and undo the sweep
	@$(call dagster_home,.demo/dagster)
	@$(in_venv) python -m examples.demo $(if $(ENGINE),--engine $(ENGINE))

.PHONY: test
test: setup ## run all tests that need only Python and Java
	@$(in_venv) python -m pytest $(in_parallel)

.PHONY: test-lowest
test-lowest: setup ## run the tests with the oldest versions that pyproject.toml allows (needs uv)
	@# Old versions warn about deprecated features, and their pytest plug-ins fail.
	@tools/resolved.sh lowest-direct $(in_parallel) -p no:anyio -o filterwarnings=default

.PHONY: test-newest
test-newest: setup ## run the tests with the newest versions that pyproject.toml allows (needs uv)
	@tools/resolved.sh highest $(in_parallel)

.PHONY: simulate
simulate: RUNS ?= 20000
simulate: setup ## run RUNS interleavings of sweeps, marks and backups under virtual time, from SEED on, or from fresh seeds
	@$(in_venv) python -m lakegc_assets_tests.simulation $(SEED) --runs $(RUNS)

.PHONY: conformance
conformance: setup ## run the remaining Spark tests, and the slow comparisons with lakeFS's clients, data, faults and races
	@$(in_venv) python -m pytest $(in_parallel) -m conformance

.PHONY: test-stores
test-stores: setup ## run the tests on real object stores (needs Go and Node)
	@$(in_venv) python -m pytest $(in_parallel) -m stores

.PHONY: test-lakefs
test-lakefs: setup ## collect repositories of a real lakeFS while clients write (needs Go)
	@$(in_venv) python -m pytest -m lakefs lakegc_assets_tests/real_lakefs

.PHONY: test-ui
test-ui: setup ## click through Dagster's interface in headless Chromium
	@tools/setup.sh browser
	@$(in_venv) python -m pytest -m ui lakegc_assets_tests/ui

.PHONY: ui
ui: setup ## start Dagster's interface and daemon on 127.0.0.1; without a configured lakeFS, on a trial
	@$(if $(DAGSTER_HOME),DAGSTER_HOME="$(DAGSTER_HOME)") $(in_venv) python -m examples.web_ui --port $(UI_PORT)

.PHONY: lint
lint: setup ## check style, types, the direction of imports, and what Dagster loads
	@$(in_venv) ruff check
	@$(in_venv) ruff format --check
	@$(in_venv) mypy
	@$(in_venv) lint-imports
	@$(in_venv) python -m pip --disable-pip-version-check check
	@# Dagster leaves the socket of each server that it starts among the temporary files.
	@scratch=$$(mktemp -d) && trap 'rm -r "$$scratch"' EXIT && export TMPDIR="$$scratch" && \
	  $(in_venv) DAGSTER_HOME="$(CURDIR)/.lakegc/dagster" dagster definitions validate -w workspace.yaml && \
	  $(in_venv) dg list defs >/dev/null

.PHONY: bench
bench: setup ## run the benchmarks of docs/performance.md
	@for file in bench/[a-z]*.py; do \
	  echo "== $$file"; $(in_venv) python -m "bench.$$(basename "$$file" .py)" || exit; \
	done

.PHONY: lock
lock: ## pin the dependencies of pyproject.toml again (needs uv)
	@tools/lock.sh

.PHONY: clean
clean: ## remove the files of all other targets, except for .lakegc, which may hold marks
	@rm -rf .venv .venv-* .demo .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache *.egg-info
	@find . -name __pycache__ -prune -exec rm -rf {} +
