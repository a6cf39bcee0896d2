# All targets work on a fresh machine with Python 3.11 and make. The environment in .venv is created
# from requirements/dev.lock when it is first needed, and again when the lock changes.

# Not the interpreter of .venv, which is removed when the lock changes.
PYTHON ?= $(firstword $(shell which -a python3.11 python3 2>/dev/null | grep -v '^$(CURDIR)/.venv/'))
# Tests that run at the same time: one per core, or more where they mostly wait for other processes.
CORES := $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 4 ? n : 4)))
JOBS ?= $(CORES)
WAITING_JOBS ?= $(shell echo $$((3 * $(CORES))))
# Port of `make run`.
PORT ?= 8765

# Minimum branch coverage of src/bursar/core for `make test`, in per cent.
COVERAGE_GATE ?= 100
# Duration of `make fuzz`, and examples per property and round.
FUZZ_MINUTES ?= 5
FUZZ_EXAMPLES ?= 1000
# Duration of `make soak`.
SOAK_MINUTES ?= 60
# What `make bench` runs; `make bench ARGS=--help` lists the benchmarks.
ARGS ?= library
# Duration of `make chaos`.
CHAOS_MINUTES ?= 60
# Minimum share of mutants that the tests must catch, in per cent.
MUTANTS_GATE ?= 90

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
LOCK := requirements/dev.lock
UV := uv==0.13.7
SAY := @printf '· %s\n'
# Compiled tests are kept, whatever the environment says: compiling them takes 10 s in each process.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest -q --dist worksteal

# Where the tests of the core are; conftest.py marks the same as `core`.
CORE_TESTS := tests/core tests/sim/faults
# What `make check` runs: the folders whose tests need neither a database nor another process, and
# one or two modules of each other folder.
CHECKED := tests/core tests/sim tests/library tests/wire tests/client tests/planted \
    $(wildcard tests/test_*.py) \
    tests/agent/test_environment.py tests/agent/test_contract.py \
    tests/api/test_every_operation.py tests/cli/test_command_line.py \
    tests/service/test_ledger.py tests/service/test_jobs.py \
    tests/store/test_constraints.py tests/store/test_sql.py

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

.PHONY: run
run: .venv/.installed ## start the service with four nodes and three tenants; stop with Ctrl-C
	@$(BIN)/bursar up --demo --port $(PORT)

.PHONY: test
test: statics ## everything CI checks: format, lint, types, all tests, coverage of the core
	$(SAY) "tests of the core, with branch coverage"
	@$(PYTEST) -n $(JOBS) --durations=10 -m 'not property' --cov --cov-report= $(CORE_TESTS)
	$(SAY) "branch coverage of the core, at least $(COVERAGE_GATE) %"
	@$(BIN)/coverage report --include='src/bursar/core/*' --fail-under=$(COVERAGE_GATE)
	$(SAY) "all other tests; properties with fixed seeds"
	@PYTHONHASHSEED=0 $(PYTEST) -n $(WAITING_JOBS) --durations=30 -m 'property or not core'

.PHONY: check
check: statics ## format, lint, types and one minute of tests
	$(SAY) "fast tests"
	@HYPOTHESIS_PROFILE=quick $(PYTEST) -n $(JOBS) -m 'not slow' $(CHECKED)

.PHONY: statics
statics: .venv/.installed
	$(SAY) "format"
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format"; exit 1; }
	$(SAY) "lint"
	@$(BIN)/ruff check --quiet .
	$(SAY) "types"
	@$(BIN)/mypy --no-error-summary

.PHONY: format
format: .venv/.installed ## format the code
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix-only .

.PHONY: exhaustive
exhaustive: .venv/.installed ## the tests that take a sample of their cases, on all cases
	@BURSAR_EXHAUSTIVE=1 $(PYTEST) -n $(JOBS) --timeout=3600 -o faulthandler_timeout=0 -m sampled

.PHONY: fuzz
fuzz: .venv/.installed ## run properties on random examples for FUZZ_MINUTES (5)
	@BURSAR_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) tools/fuzz $(FUZZ_MINUTES) -n $(JOBS)

.PHONY: soak
soak: .venv/.installed ## inject faults into a ledger for SOAK_MINUTES (60)
	@$(BIN)/python -m tools.soak $(SOAK_MINUTES)

.PHONY: chaos
chaos: .venv/.installed ## inject faults into whole deployments for CHAOS_MINUTES (60)
	@$(BIN)/python -m tools.chaos $(CHAOS_MINUTES)

.PHONY: mutants
mutants: planted mutated ## apply the planted bugs, then mutate the money core

.PHONY: planted
planted: .venv/.installed ## apply the bugs of tests/planted, one at a time; a test must catch each
	@$(BIN)/python -m tools.planted --jobs $(JOBS) --only '$(ONLY)'

# Starts from scratch, because mutmut keeps old verdicts when only tests have changed. KEEP=1
# continues an earlier run.
.PHONY: mutated
mutated: .venv/.installed
	@$(if $(KEEP),rm -rf mutants/tests,rm -rf mutants)
	@HYPOTHESIS_PROFILE=mutants $(BIN)/mutmut run --max-children $(JOBS)
	@$(BIN)/mutmut export-cicd-stats >/dev/null
	@$(BIN)/mutmut results
	@$(BIN)/python tools/mutation_score.py --gate $(MUTANTS_GATE)

.PHONY: bench
bench: .venv/.installed ## run a benchmark: ARGS="library", "ledger --quick", "schedule --core"
	@$(BIN)/python -m benchmarks $(ARGS)

# Keeps the locked versions unless UPGRADE=1. The lock names no registry: pip uses the one that the
# machine is configured for, and checks the hashes.
.PHONY: lock
lock: ## update requirements/dev.lock from pyproject.toml
	$(SAY) "locking"
	@at=$$(mktemp -d) && trap 'rm -rf "$$at"' EXIT && \
	$(PYTHON) -m venv "$$at" && \
	"$$at/bin/python" -m pip --disable-pip-version-check -qq install $(UV) && \
	"$$at/bin/uv" pip compile pyproject.toml --extra service --group dev --output-file $(LOCK) \
	    --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	    --system-certs --quiet $(if $(UPGRADE),--upgrade)

.PHONY: clean
clean: ## remove everything that can be built again
	@rm -rf .venv .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache \
	    build dist mutants
	@find benchmarks src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# The lock lists every package, so pip resolves no dependencies: older versions of pip would pick the
# newest release of a package with an extra, which is not in the lock. The stamp is written last, so
# an interrupted installation starts again.
.venv/.locked: $(LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "bursar needs Python 3.11 or newer; set PYTHON to one"; exit 1; }
	$(SAY) "creating .venv"
	@rm -rf .venv
	@$(PYTHON) -m venv .venv
	$(SAY) "installing the locked tools (half a minute)"
	@$(PIP) install --no-deps --require-hashes -r $(LOCK)
	@touch $@

.venv/.installed: .venv/.locked pyproject.toml
	$(SAY) "installing bursar"
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@
