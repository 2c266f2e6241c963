# `make` lists the commands. The first three need nothing but Python 3.11, 3.12, 3.13 or 3.14.
PYTHON ?= $(or $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,$(shell command -v $(p) 2>/dev/null))),python3)
BIN    := .venv/bin
# Two notebooks or test files at a time: each may hold torch and a kernel, about 2 GB.
ALONE  := $(BIN)/python -m pytest --durations=10
PYTEST := $(ALONE) -n 2 --dist loadfile
NBVAL  := --nbval --nbval-current-env --nbval-cell-timeout=300

# A Python that was named is used or refused; one that was merely found may hand over to a better one.
ifneq ($(origin PYTHON),file)
export WORKBOOK_PYTHON_CHOSEN := 1
endif
export SYSTEM_TORCH

.DEFAULT_GOAL := help
.PHONY: help lab test test-slow test-isa test-all check fix env

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1|/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
	  || grep '##' $(MAKEFILE_LIST)

env: ## create .venv, or refresh it when the pins changed
	@$(PYTHON) -m setup_env env

lab: ## the same, then JupyterLab on a page that lists your copies of chapters and labs (LAB_ARGS="--port 9000")
	@$(PYTHON) -m setup_env lab $(LAB_ARGS)

# Two workers of two OpenMP threads each spin for each other's cores; one thread each is three times as fast.
test test-slow test-isa test-all: export OMP_NUM_THREADS ?= 1
test: env ## the fast tests, then every notebook against its stored outputs, and as learners leave it
	$(PYTEST) -rs -m "not slow and not all" tests
	$(PYTEST) $(NBVAL) -p tests.learner notebooks solutions

# In order: the longest of these are in files of few tests, which xdist would keep for the end.
test-slow: env ## one test of each mechanism that needs minutes
	$(PYTEST) --no-loadscope-reorder -m "slow and not alone and not all" tests
	$(ALONE) -m "slow and alone and not all" tests

# The processors of other machines, as far as oneDNN and ATen can be told: neither bytes nor a stored output may depend
# on them. ATen is never told alone: where oneDNN still sees AMX, PyTorch packs for it with code that an older ATen lacks.
AVX2 := ONEDNN_MAX_CPU_ISA=AVX2,ATEN_CPU_CAPABILITY=avx2
ISAS := $(AVX2) ONEDNN_MAX_CPU_ISA=AVX2,ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX512_CORE
# A processor with AVX2 and nothing above it: on AVX2 nothing would be different from `make test`.
OWN := $(if $(shell grep -m1 avx2 /proc/cpuinfo 2>/dev/null | grep -v avx512),$(AVX2))
BYTES := $(addprefix tests/memory/,meter/test_witness.py measure/test_training.py trace/test_against_measure.py \
         step/test_budget_against_measure.py)
test-isa: env ## measured bytes and every notebook, once more on other processors' instructions (ISAS="…" chooses)
	@set -e; for isa in $(ISAS); do \
	  if [ "$$isa" = "$(OWN)" ]; then echo "$$isa: this processor's own, make test has run it"; continue; fi; \
	  echo "$$isa"; export $$(echo "$$isa" | tr , ' '); \
	  $(PYTEST) -m "not slow and not all" $(BYTES); \
	  $(PYTEST) $(NBVAL) notebooks solutions; \
	done

test-all: env ## everything: the two above, and what only a night has time for
	$(BIN)/python -m pip install --quiet -r requirements-nbgrader.txt
	$(PYTEST) --no-loadscope-reorder -m "not alone" tests
	$(ALONE) -m alone tests
	$(PYTEST) $(NBVAL) -p tests.learner notebooks solutions
	$(MAKE) test-isa

check: env ## lint (notebooks too), format and types, never edits; then the few functions and files that are long
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m helpers.course.lint
	@$(BIN)/python -m tests.house.sizes

fix: env ## lint and format, editing
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
