# Everything here runs in .venv, which is made on first use and brought up to date when the requirements change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python -m
COMPILE := $(BIN)/pip-compile --quiet --allow-unsafe --strip-extras --annotation-style line --no-header --no-emit-options \
  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host

.PHONY: help env demo test test-long drill lint format clean gc lock
.DEFAULT_GOAL := help

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: $(VENV)/demo.stamp ## make the environment in .venv

demo: $(VENV)/demo.stamp ## train and score a small model on this machine; ends with results/report.html
	$(BIN)/snakemake --profile profiles/local all --report results/report.html --report-after-run
	@cat results/summary.txt

test: $(VENV)/dev.stamp lint ## lint, and the tests that take minutes
	$(RUN) pytest -m "not long" --numprocesses 2 --dist loadfile --no-loadscope-reorder

test-long: $(VENV)/dev.stamp ## the long tests: the workflow under kills, the demo from a fresh clone
	$(RUN) pytest -m long

drill: $(VENV)/dev.stamp ## kill a training 20 times at random moments; it must end in the same bits
	$(RUN) tests.drill --kills 20

lint: $(VENV)/dev.stamp ## check style and workflow
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(BIN)/snakefmt --check workflow
	$(BIN)/snakemake --lint

format: $(VENV)/dev.stamp ## bring all code into the project's style
	$(RUN) ruff check --fix .
	$(RUN) ruff format .
	$(BIN)/snakefmt workflow

clean: ## delete the environment and caches; results stay
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

gc: $(VENV)/demo.stamp ## list run directories that no milestone refers to
	$(RUN) tools.status --results results --unused

lock: $(VENV)/dev.stamp ## compile the requirements anew from pyproject.toml
	$(COMPILE) --output-file requirements.txt pyproject.toml
	$(COMPILE) --extra dev --constraint requirements.txt --output-file requirements-dev.txt pyproject.toml
	@for file in requirements.txt requirements-dev.txt; do \
	  { echo "# Compiled from pyproject.toml by \`make lock\`; edit that file, not this one."; \
	    sed -e 's/^\(torch==[0-9.]*\)+[a-z0-9.]*/\1/' $$file; } > $$file.new && mv $$file.new $$file; done

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: Caravan needs Python 3.11 or later, $(PYTHON) is `$(PYTHON) --version 2>&1`; try make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: requirements.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install -qq -r requirements.txt
	@touch $@

$(VENV)/dev.stamp: requirements-dev.txt | $(VENV)/demo.stamp
	$(BIN)/python -m pip install -qq -r requirements-dev.txt
	@touch $@
