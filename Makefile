# `make app` starts the page and `make test` runs all tests. Both create the virtual environment first.
.DEFAULT_GOAL := help
.PHONY: help app test lint types docs smoke bench zoo hostile attack load soak lowest lock audit chromium clean
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ADVISORIES := https://pypi.org/pypi/pip/24.0/json

help:
	@echo "make app     start the page on http://127.0.0.1:7860 (options: make app ARGS='--model resnet50')"
	@echo "make test    run all tests (options: make test ARGS='-k hooks')"
	@echo "make lint    ruff; for scripts eslint, tsc and prettier;  make types  mypy;  make smoke  short benchmarks;  make bench  all benchmarks"
	@echo "make docs    build the site into build/site and check it (links, names, blocks of code, search, size, accessibility)"
	@echo "make zoo     test all kinds of methods on 180 networks (20 minutes on two idle cores); writes docs/networks.md"
	@echo "make hostile  decode 1,600 hostile files, and those in the folder SALISCOPE_HOSTILE; load hostile checkpoints"
	@echo "make attack  attack a running page;  make load  100 users;  make soak  rounds of questions (ARGS='--rounds 8 --questions 12')"
	@echo "make lowest  the tests of LOWEST with the lowest allowed versions of all packages, in an environment of its own"
	@echo "make lock    write pre-requirements.txt, the tested versions with hashes for the Space and the container"
	@echo "make audit   known vulnerabilities of the installed packages (pip-audit), and sbom.json, the list of them (CycloneDX)"
	@echo "make clean   remove the virtual environment and caches"

app: $(VENV)/.app
	$(BIN)/python -m saliscope serve $(ARGS)

# Hundreds of processes start during the tests, which must not compile all modules again.
test: $(VENV)/.test chromium
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --durations=10 $(ARGS)

lint: $(VENV)/.test node_modules
	$(BIN)/ruff check .
	npm run -s lint

# The linter, the type checker and the formatter of the scripts need node 20 or later.
node_modules: package.json
	@command -v npm >/dev/null || $(MAKE) --no-print-directory system PACKAGES=npm
	npm install --no-audit --no-fund --loglevel=error
	@touch $@

types: $(VENV)/.test
	$(BIN)/mypy

# A warning is an error: a dead link, a name without a docstring, a page that no menu lists.
docs: $(VENV)/.docs chromium
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/site
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --slow tests/project/site_checks.py tests/project/test_reference.py tests/project/test_docs_blocks.py

smoke: $(VENV)/.test
	timeout 240 $(BIN)/python -m benchmarks --smoke

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks $(ARGS)

zoo: $(VENV)/.test
	timeout 1260 $(BIN)/python -m benchmarks.zoo $(ARGS)

hostile: $(VENV)/.test
	timeout 720 $(BIN)/python -m benchmarks.public.hostile $(ARGS)

attack: $(VENV)/.test chromium
	timeout 1560 $(BIN)/python -m benchmarks.public.attack $(ARGS)

load: $(VENV)/.test
	timeout 1500 $(BIN)/python -m benchmarks.public.load $(ARGS)

soak: $(VENV)/.test
	timeout 1800 $(BIN)/python -m benchmarks.public.soak $(ARGS)

# The tests that run with the lowest allowed versions: the methods, images, networks, commands and the page without Chromium.
LOWEST ?= tests/explainers/hooks tests/explainers/methods tests/explainers/metrics tests/explainers/maps tests/saliscope/images \
    tests/saliscope/zoo tests/saliscope/compute tests/saliscope/page

# pip always installs the highest versions; uv installs the lowest ones of the packages that this project names.
lowest: $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)/lowest
	$(VENV)/lowest/bin/pip install -q uv
	$(VENV)/lowest/bin/uv pip install -q --python $(VENV)/lowest/bin/python --resolution lowest-direct -e '.[app,data,test,monitoring,mcp]'
	PYTHONDONTWRITEBYTECODE= timeout 1800 $(VENV)/lowest/bin/python -m pytest -n auto --dist loadfile $(LOWEST) $(ARGS)

# The tools of `lock` and `audit` are in an environment without the app.
$(VENV)/audit/bin/python: | $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/pip install -q uv pip-audit cyclonedx-bom

# The versions with which the tests ran, for the Space and the container.
lock: $(VENV)/.test $(VENV)/audit/bin/python
	$(BIN)/pip freeze -q --exclude-editable > $(VENV)/tested.txt
	cat requirements.txt deploy/requirements.txt | $(VENV)/audit/bin/uv pip compile -q --universal --python-version 3.12 \
	    --generate-hashes --no-annotate --no-emit-index-url --custom-compile-command "make lock" -c $(VENV)/tested.txt \
	    -o pre-requirements.txt -

audit: $(VENV)/.test $(VENV)/audit/bin/python
	$(VENV)/audit/bin/cyclonedx-py environment $(BIN)/python -o sbom.json
	@if $(BIN)/python -c 'import urllib.request as r; r.urlopen("$(ADVISORIES)", timeout=10)' 2>/dev/null; \
	    then $(VENV)/audit/bin/pip-audit --require-hashes --disable-pip -r pre-requirements.txt \
	        && $(VENV)/audit/bin/pip-audit --path "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"; \
	    else echo "Skipped pip-audit: its advisory service ($(ADVISORIES)) cannot be reached."; fi

# The requirements of the app.
$(VENV)/.app: requirements.txt | $(VENV)/bin/python
	$(BIN)/pip install -q -r requirements.txt
	@touch $@

# The other requirements of tests, checks and benchmarks. The package is installed in editable mode, so the clone is tested.
# Python compiles what the tests import; compiling all files of torch and others takes a minute more.
$(VENV)/.test: requirements.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install -q --no-compile -r requirements.txt -e '.[test,peers,check,zoo,data]'
	@touch $@ $(VENV)/.app

$(VENV)/.docs: $(VENV)/.test
	$(BIN)/pip install -q --no-compile -e '.[docs]'
	@touch $@

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is required. Run: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV) || { $(MAKE) --no-print-directory system PACKAGES=python3-venv && $(PYTHON) -m venv --clear $(VENV); }
	$(BIN)/pip install -q --upgrade pip

# Browser tests use any Chromium or Chrome. They are skipped if there is none and it cannot be installed.
chromium:
	@command -v chromium-headless-shell chromium chromium-browser google-chrome >/dev/null \
	    || $(MAKE) --no-print-directory system PACKAGES="chromium-headless-shell fonts-dejavu-core" \
	    || $(MAKE) --no-print-directory system PACKAGES="chromium fonts-dejavu-core" \
	    || echo "Chromium is not installed and could not be installed. Browser tests will be skipped."

.PHONY: system
system:
	@command -v apt-get >/dev/null || { echo "Install these packages: $(PACKAGES)"; exit 1; }
	@sudo=$$([ "$$(id -u)" = 0 ] || echo "sudo -n"); \
	    $$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq --no-install-recommends $(PACKAGES) >/dev/null

clean:
	rm -rf $(VENV) node_modules *.egg-info build .pytest_cache .ruff_cache .mypy_cache
