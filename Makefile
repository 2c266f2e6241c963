# `make` lists the commands. The first three need nothing but Python 3.11, 3.12 or 3.13.
PYTHON ?= $(or $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,$(shell command -v $(p) 2>/dev/null))),python3)
BIN    := .venv/bin
# Two notebooks or test files at a time: each may hold torch and a kernel, about 2 GB.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile
NBVAL  := --nbval --nbval-current-env --nbval-cell-timeout=300

# A Python that was named is used or refused; one that was merely found may hand over to a better one.
ifneq ($(origin PYTHON),file)
export WORKBOOK_PYTHON_CHOSEN := 1
endif
export SYSTEM_TORCH

.DEFAULT_GOAL := help
.PHONY: help lab test test-slow check fix env

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1|/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
	  || grep '##' $(MAKEFILE_LIST)

env: ## create .venv, or refresh it when the pins changed
	@$(PYTHON) -m setup_env env

lab: ## the same, then JupyterLab on the first notebook (LAB_ARGS="--port 9000")
	@$(PYTHON) -m setup_env lab $(LAB_ARGS)

# Two workers of two OpenMP threads each spin for each other's cores; one thread each is three times as fast.
test test-slow: export OMP_NUM_THREADS ?= 1
test: env ## the fast tests, then every notebook against its stored outputs
	$(PYTEST) -m "not slow" tests
	$(PYTEST) $(NBVAL) notebooks solutions

# In order: the longest of these are in files of few tests, which xdist would keep for the end.
test-slow: env ## the tests that `make test` leaves out
	$(PYTEST) --no-loadscope-reorder -m "slow and not alone" tests
	$(BIN)/python -m pytest -m "slow and alone" tests

check: env ## lint, format and types, never edits; then the few functions and files that are long
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(BIN)/python -m tests.house.sizes

fix: env ## lint and format, editing
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
