# The verbs of this project. Each one works on a fresh machine that has Python 3.11 and make:
# the environment in .venv is made from requirements/dev.lock the first time it is needed,
# and again when the lock changes.

# Never the interpreter of .venv itself, which is removed when the lock changes.
PYTHON ?= $(firstword $(shell which -a python3.11 python3 2>/dev/null | grep -v '^$(CURDIR)/.venv/'))
# How many tests run at a time: one per core, or more where they mostly wait for other processes.
CORES := $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 4 ? n : 4)))
JOBS ?= $(CORES)
WAITING_JOBS ?= $(shell echo $$((3 * $(CORES))))
# Where `make run` listens, on this machine.
PORT ?= 8765

# Least branch coverage of src/bursar/core, in per cent, that `make test` accepts.
COVERAGE_GATE ?= 100
# How long `make fuzz` goes on, and how many examples each property gets in a round.
FUZZ_MINUTES ?= 5
FUZZ_EXAMPLES ?= 1000
# How long `make soak` goes on.
SOAK_MINUTES ?= 60
# What `make bench` runs; `make bench ARGS=--help` lists the benchmarks.
ARGS ?= library
# How long `make chaos` goes on.
CHAOS_MINUTES ?= 60
# Least share of mutants, in per cent, that the tests must notice.
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
run: .venv/.installed ## start everything: service, four nodes, three tenants with jobs; stop with Ctrl-C
	@$(BIN)/bursar up --demo --port $(PORT)

.PHONY: test
test: statics ## everything CI checks: format, lint, types, all tests, coverage of the core
	$(SAY) "tests of the core, with branch coverage"
	@$(PYTEST) -n $(JOBS) --durations=10 -m 'not property' --cov --cov-report= $(CORE_TESTS)
	$(SAY) "branch coverage of the core, at least $(COVERAGE_GATE) %"
	@$(BIN)/coverage report --include='src/bursar/core/*' --fail-under=$(COVERAGE_GATE)
	$(SAY) "all other tests; properties over random histories, fixed seeds"
	@PYTHONHASHSEED=0 $(PYTEST) -n $(WAITING_JOBS) --durations=30 -m 'property or not core'

.PHONY: check
check: statics ## format, lint, types and the tests that take a minute
	$(SAY) "tests of the rules, and some of all else"
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
format: .venv/.installed ## put the code into the house format
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix-only .

.PHONY: exhaustive
exhaustive: .venv/.installed ## the tests that take a sample of their cases, on all cases
	@BURSAR_EXHAUSTIVE=1 $(PYTEST) -n $(JOBS) --timeout=3600 -o faulthandler_timeout=0 -m sampled

.PHONY: fuzz
fuzz: .venv/.installed ## random examples for FUZZ_MINUTES (5), seeds printed
	@BURSAR_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) tools/fuzz $(FUZZ_MINUTES) -n $(JOBS)

.PHONY: soak
soak: .venv/.installed ## kill, stop and cut everything at random for SOAK_MINUTES (60), seeds printed
	@$(BIN)/python -m tools.soak $(SOAK_MINUTES)

.PHONY: chaos
chaos: .venv/.installed ## the same to whole deployments, at every failpoint too, for CHAOS_MINUTES (60)
	@$(BIN)/python -m tools.chaos $(CHAOS_MINUTES)

.PHONY: mutants
mutants: planted mutated ## plant the listed bugs, then change the money core in small ways

.PHONY: planted
planted: .venv/.installed ## plant the bugs of tests/planted, one at a time; a test must catch each
	@$(BIN)/python -m tools.planted --jobs $(JOBS) --only '$(ONLY)'

# From scratch, because mutmut keeps old verdicts when only tests have changed; KEEP=1 goes on
# with what is there.
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

# Keeps the versions that are there unless UPGRADE=1. The lock names no registry: pip finds the
# files wherever the machine's own settings say, and their hashes decide.
.PHONY: lock
lock: ## make requirements/dev.lock anew from pyproject.toml
	$(SAY) "locking"
	@at=$$(mktemp -d) && trap 'rm -rf "$$at"' EXIT && \
	$(PYTHON) -m venv "$$at" && \
	"$$at/bin/python" -m pip --disable-pip-version-check -qq install $(UV) && \
	"$$at/bin/uv" pip compile pyproject.toml --extra service --group dev --output-file $(LOCK) \
	    --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	    --system-certs --quiet $(if $(UPGRADE),--upgrade)

.PHONY: clean
clean: ## remove all that can be made again
	@rm -rf .venv .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache \
	    build dist mutants
	@find benchmarks src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# The lock is the whole list, so pip looks for nothing more: older ones would take the newest release
# of a package that is asked for with an extra, and refuse it as it is not in the lock.
# A stamp is written last, so an environment whose making was interrupted does not count.
.venv/.locked: $(LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "bursar needs Python 3.11 or newer; set PYTHON to one"; exit 1; }
	$(SAY) "making .venv"
	@rm -rf .venv
	@$(PYTHON) -m venv .venv
	$(SAY) "installing the locked tools (half a minute)"
	@$(PIP) install --no-deps --require-hashes -r $(LOCK)
	@touch $@

.venv/.installed: .venv/.locked pyproject.toml
	$(SAY) "installing bursar into it"
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@
