# Every entry point of the repository. `make` alone lists them.
# Needs GNU make 3.81 or newer and Python 3.11 or newer; everything else is installed into .venv by the first target.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SERVER := $(VENV)/.installed-server
DEV    := $(VENV)/.installed-dev
GEN    := .venv-gen
GENDEV := $(GEN)/.installed

# Test processes; each one brings its own embedded server.
WORKERS ?= auto
# Passed on: make test ARGS="-k lease", make demo ARGS="--json", make bench ARGS=..., BASE=<commit>, SCRIPTS=1.
ARGS ?=
# What a cluster of one node runs: whatever calls scripts. Tests that know real clusters run with all others, too.
CLUSTER_TESTS ?= $(addprefix tests/,lua transitions model engine background delivery rpc cases stories store cluster)
BASE ?=
SCRIPTS ?=
# make mutants N=40 draws as many, by SEED if given; ONLY=finish,fail takes those of some transitions.
N ?=
SEED ?=
ONLY ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-lua test-cluster mutants soak-watch soak-cases lint format type gen gen-check bench wheel-check clean

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(DEV) ## Make .venv and install Pawl, its embedded server and the developer tools

demo: $(SERVER) ## Watch real documents go through a durable workflow, with a worker killed half-way
	@$(BIN)/pawl demo $(ARGS)

test: $(DEV) ## Run all tests in random order, in parallel, then the coverage of script replies and rules
	@$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)
	@$(if $(strip $(ARGS)),,$(BIN)/python tools/reply_coverage.py)
	@$(BIN)/python tools/spec_coverage.py

test-lua: $(DEV) ## Run the tests of the Lua scripts alone
	@$(BIN)/python -m pytest -n $(WORKERS) tests/lua $(ARGS)

mutants: $(DEV) ## Take one line at a time out of the scripts and see that a test notices
	@$(BIN)/python tools/mutants.py $(if $(N),--count $(N)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) $(ARGS)

test-cluster: $(DEV) ## Run the tests again with clusters of one node in place of single servers
	@PAWL_TEST_CLUSTER=1 $(BIN)/python -m pytest -n $(WORKERS) $(CLUSTER_TESTS) $(ARGS)

soak-watch: $(DEV) ## Watch 500 instances for a minute while streams and connections are cut
	@PAWL_SOAK_WATCH=1 $(BIN)/python -m pytest tests/rpc/test_watch_soak.py $(ARGS)

soak-cases: $(DEV) ## Replay the cases about dead networks and idle connections at full length, two minutes each
	@PAWL_SOAK_CASES=1 $(BIN)/python -m pytest tests/cases/test_c09_packets_get_lost.py \
		tests/cases/test_c39_keepalive_without_calls.py $(ARGS)

lint: $(DEV) ## Check style, spelling, layers, protos and scripts
	@failed=; run() { echo "$$*"; "$$@" || failed="$$failed, $$*"; }; \
	run $(BIN)/ruff check --quiet --output-format concise .; \
	run $(BIN)/ruff format --check --quiet .; \
	run $(BIN)/codespell; \
	run $(BIN)/lint-imports --no-logo; \
	run $(BIN)/buf lint; \
	run $(BIN)/buf format --diff --exit-code; \
	run $(BIN)/python tools/check_lua.py; \
	run $(BIN)/python tools/sizes.py; \
	if [ -n "$$failed" ]; then echo "lint: failed$$failed" >&2; exit 1; fi

format: $(DEV) ## Rewrite the Python and proto sources in the house format
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .
	@$(BIN)/buf format -w proto

type: $(DEV) ## Check the types
	@$(BIN)/pyright

gen: $(GENDEV) ## Generate stubs, script wrappers and reference pages
	@$(GEN)/bin/python tools/gen.py

gen-check: $(GENDEV) ## Fail if anything generated is not what its source says
	@$(GEN)/bin/python tools/gen.py --check

bench: $(DEV) ## Measure the workloads, one JSON line each (BASE=<commit> compares, SCRIPTS=1 leaves gRPC out)
	@$(BIN)/python -m bench $(if $(BASE),--base $(BASE)) $(if $(SCRIPTS),--scripts) $(ARGS)

wheel-check: $(DEV) ## Build the wheel, install it in an empty environment and run its demo there
	@$(BIN)/python tools/wheel_check.py $(ARGS)

clean: ## Remove the environments and everything built
	rm -rf $(VENV) $(GEN) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The first Python that is new enough: the one asked for, else a well-known name.
define NEW_VENV
	@for python in "$(PYTHON)" python3.14 python3.13 python3.12 python3.11; do \
	  if command -v "$$python" >/dev/null 2>&1 && \
	     "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    test -x $(1)/bin/python || "$$python" -m venv $(1) || { \
	      rm -rf $(1); echo "make: '$$python -m venv' failed (Debian keeps it in the package python3-venv)" >&2; exit 1; }; \
	    exit 0; \
	  fi; \
	done; \
	echo "make: Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3" >&2; exit 1
endef

INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements/constraints.txt

$(SERVER): pyproject.toml requirements/constraints.txt
	$(call NEW_VENV,$(VENV))
	@echo "installing the server into $(VENV) ..."
	@$(INSTALL) -e '.[server]'
	@touch $@

$(DEV): $(SERVER)
	@echo "installing the developer tools into $(VENV) ..."
	@$(INSTALL) -e '.[server,dev]'
	@touch $@

$(GENDEV): tools/requirements-gen.txt
	$(call NEW_VENV,$(GEN))
	@echo "installing into $(GEN) ..."
	@$(GEN)/bin/python -m pip install --quiet --disable-pip-version-check -r tools/requirements-gen.txt
	@touch $@
