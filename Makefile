# Every target runs in .venv, which is created on first use and updated when the requirements change.

PYTHON ?= python3
VENV := .venv
CLOUD := .venv-cloud
STANDARDS := .venv-standards
BIN := $(VENV)/bin
RUN := $(BIN)/python -m
COMPILE := $(BIN)/pip-compile --quiet --allow-unsafe --strip-extras --annotation-style line --no-header --no-emit-options \
  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host

# Where Python keeps no compiled files, each of the thousands of processes would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

PARALLEL := --numprocesses 3 --dist loadfile --no-loadscope-reorder # tests/conftest.py says how tests are divided
EXAMPLES = --hypothesis-profile ci # the same examples in each run: what fails, fails again
PYTEST = # more options of pytest, for example PYTEST="--basetemp=/tmp/tests"

WHEELS ?= # a directory of wheels: install from it alone, without network; `make wheelhouse` writes one
MINUTES = 10
GPU = # options of benchmarks.gpu
BENCH = # options of benchmarks.bench

.PHONY: help env wheelhouse demo test-fast test test-landing test-long test-slurm test-cloud test-standards drill siege gpu bench lint docs rules-picture format clean gc lock
.DEFAULT_GOAL := help

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: $(VENV)/demo.stamp ## create the environment in .venv

wheelhouse: | $(VENV)/bin/python ## collect what `make env` installs in wheels/, for a machine without network: make env WHEELS=wheels
	$(BIN)/python -m pip wheel -qq -r requirements.txt --wheel-dir "$(or $(WHEELS),wheels)"

demo: $(VENV)/demo.stamp ## train and score a small model on this machine; ends with results/card.html, and report.html beside it
	$(BIN)/snakemake --profile profiles/local all --report results/report.html --report-after-run
	@cat results/summary.txt
	@echo "The rules with their code and times: results/report.html"

test-fast: $(VENV)/dev.stamp ## unit tests that start no process, in about two minutes
	$(RUN) pytest -m "not long" $(EXAMPLES) --no-processes $(PARALLEL) $(PYTEST) tests/stages/lib tests/config tests/workflow

test: $(VENV)/dev.stamp lint ## lint, and the tests that take minutes
	$(RUN) pytest -m "not long" $(EXAMPLES) $(PARALLEL) $(PYTEST)

test-landing: $(VENV)/dev.stamp ## the long tests that .ci/run runs: three tutorials from fresh clones, one drill, requeue and lease on Slurm
	$(RUN) pytest -m landing $(EXAMPLES) --timeout 900 $(PARALLEL) --ignore=tests/slurm $(PYTEST)
	$(RUN) pytest -m landing $(EXAMPLES) --timeout 900 $(PYTEST) tests/slurm

test-long: $(VENV)/dev.stamp ## all long tests, by hand before a release and every night: the workflow under kills, the demo, faults of Slurm
	$(RUN) pytest -m long $(EXAMPLES) --timeout 900 $(PARALLEL) --ignore=tests/slurm $(PYTEST)
	$(RUN) pytest -m long $(EXAMPLES) --timeout 900 $(PYTEST) tests/slurm # alone: jobs of a minute must start in half of it

test-slurm: $(VENV)/dev.stamp ## the tests of `make test` that need Slurm, on a private cluster of four nodes
	$(RUN) pytest -m "not long" $(EXAMPLES) $(PYTEST) tests/slurm

test-cloud: $(CLOUD)/stamp ## the workflow on Kubernetes and S3, with servers on this machine in place of both
	$(CLOUD)/bin/python -m pytest --timeout 900 $(PYTEST) tests/cloud

test-standards: $(STANDARDS)/stamp ## an RO-Crate, CITATION.cff and the logger snkmt, with the tools that define them
	$(STANDARDS)/bin/python -m pytest -m standards $(PYTEST) tests/test_ci.py tests/tools/test_verify_chain.py tests/workflow/test_job_lines.py

drill: $(VENV)/dev.stamp ## kill a training 20 times at random moments; its result must have the same bits
	$(RUN) tests.drill --kills 20

siege: $(VENV)/dev.stamp ## attack every stage with kills, damaged files, limits and bad command lines for MINUTES (10)
	$(RUN) tests.siege --minutes $(MINUTES) --raw siege.jsonl

gpu: $(VENV)/dev.stamp ## check and measure training on one GPU in less than 20 minutes; GPU="--groups correctness" for a part
	$(RUN) benchmarks.gpu $(GPU)

bench: $(VENV)/dev.stamp ## run all benchmarks of this machine, about an hour; BENCH="--only start workflow" for some
	$(RUN) benchmarks.bench $(BENCH)

lint: $(VENV)/dev.stamp ## check style, types and workflow
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(BIN)/snakefmt --check workflow
	$(BIN)/snakemake --lint
	$(BIN)/mypy

docs: $(VENV)/docs.stamp ## build the documentation in site/; a broken link is an error
	$(RUN) mkdocs build --strict

rules-picture: $(VENV)/demo.stamp ## draw the rules of the demo again, with Graphviz: docs/images/rules.svg
	@command -v dot > /dev/null || { echo "make: Graphviz's command dot is missing; install it (Debian: graphviz)"; exit 1; }
	PYTHONHASHSEED=0 $(BIN)/snakemake --profile profiles/local --rulegraph dot all --forceall > $(VENV)/rules.dot
	dot -Tsvg -Grankdir=LR $(VENV)/rules.dot -o docs/images/rules.svg

format: $(VENV)/dev.stamp ## apply the project's style to all code
	$(RUN) ruff check --fix .
	$(RUN) ruff format .
	$(BIN)/snakefmt workflow

clean: ## delete the environment and caches; results stay
	rm -rf $(VENV) $(CLOUD) $(STANDARDS) .pytest_cache .ruff_cache .mypy_cache .hypothesis site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

gc: $(VENV)/demo.stamp ## list run directories that no milestone refers to
	$(RUN) tools.status --results results --unused

lock: $(VENV)/dev.stamp ## compile the requirements from pyproject.toml again, and uv.lock, pixi.toml and conda's file from them
	$(COMPILE) --output-file requirements.txt pyproject.toml
	$(COMPILE) --extra dev --constraint requirements.txt --output-file requirements-dev.txt pyproject.toml
	@for file in requirements.txt requirements-dev.txt; do \
	  { echo "# Compiled from pyproject.toml by \`make lock\`; edit that file, not this one."; \
	    sed -e 's/^\(torch==[0-9.]*\)+[a-z0-9.]*/\1/' \
	      -e "s/^\(ibm-fms==[0-9.]*\)/\1 ; python_version < '3.13'/" $$file; } > $$file.new && mv $$file.new $$file; done
	UV=$(BIN)/uv $(BIN)/python workflow/scripts/generate_environments.py --lock

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: Caravan needs Python 3.11 or later, $(PYTHON) is `$(PYTHON) --version 2>&1`; try make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# so that `python -m tools.status` works in every directory
$(VENV)/path.stamp: | $(VENV)/bin/python
	$(BIN)/python -c 'import os, pathlib, sysconfig; \
	  pathlib.Path(sysconfig.get_path("purelib"), "caravan.pth").write_text(os.getcwd() + "\n")'
	@touch $@

# Install a requirements file. Of a wheelhouse that lacks a wheel, pip's lines become one sentence.
define install
	@if [ -n "$(WHEELS)" ] && [ ! -d "$(WHEELS)" ]; then \
	  echo "make: WHEELS must be a directory, got $(WHEELS); \`make wheelhouse\` writes one" >&2; exit 2; fi
	@echo "pip install -r $(1)"
	@$(BIN)/python -m pip install -qq $(if $(WHEELS),--no-index --find-links "$(WHEELS)") -r $(1) 2>$(VENV)/pip.log || { \
	  missing=`sed -n 's/^ERROR: No matching distribution found for //p' $(VENV)/pip.log | head -n 1`; \
	  if [ -z "$(WHEELS)" ] || [ -z "$$missing" ]; then cat $(VENV)/pip.log >&2; exit 1; fi; \
	  echo "make: $(WHEELS) has no wheel of $$missing for `$(BIN)/python --version`; run \`make wheelhouse\` with network" \
	    "and the same Python, and copy its directory here" >&2; exit 2; }
endef

$(VENV)/demo.stamp: requirements.txt | $(VENV)/path.stamp
	$(call install,requirements.txt)
	@touch $@

$(VENV)/dev.stamp: requirements-dev.txt | $(VENV)/demo.stamp
	$(call install,requirements-dev.txt)
	@touch $@

# environments beside .venv that find its packages, and have those of pyproject.toml's list that they are named after
.venv-%/stamp: pyproject.toml | $(VENV)/dev.stamp
	$(BIN)/python -m venv .venv-$*
	$(BIN)/python -c 'import os, pathlib, subprocess, sysconfig; \
	  to = subprocess.check_output([".venv-$*/bin/python", "-c", "import sysconfig; print(sysconfig.get_path(\"purelib\"))"], text=True); \
	  pathlib.Path(to.strip(), "base.pth").write_text(os.path.realpath(sysconfig.get_path("purelib")) + "\n" + os.getcwd() + "\n")'
	$(BIN)/python -c 'import tomllib; project = tomllib.load(open("$<", "rb")); \
	  print(*(project["project"]["optional-dependencies"] | project["tool"]["caravan"])["$*"], sep="\n")' | \
	  .venv-$*/bin/python -m pip install -qq $(CONSTRAINT_$*) -r /dev/stdin
	@touch $@

CONSTRAINT_cloud := --constraint requirements.txt # those of `standards` need an older rich

$(VENV)/docs.stamp: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("$<", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' | \
	  $(BIN)/python -m pip install -qq --constraint requirements.txt -r /dev/stdin
	@touch $@
