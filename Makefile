# `make app` serves the page, `make test` runs every test; each sets up a fresh machine by itself.
.DEFAULT_GOAL := help
.PHONY: help app test lint types smoke bench zoo chromium clean
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

help:
	@echo "make app     serve the page on http://127.0.0.1:7860 (flags: make app ARGS='--model resnet50')"
	@echo "make test    run all tests (flags: make test ARGS='-k hooks')"
	@echo "make lint    ruff;  make types  mypy;  make smoke  a short run of the benchmarks;  make bench  all of them"
	@echo "make zoo     every method on 164 architectures, in 20 minutes on two idle cores; writes docs/networks.md"
	@echo "make clean   remove the virtual environment and caches"

app: $(VENV)/.app
	$(BIN)/python app.py $(ARGS)

test: $(VENV)/.test chromium
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check .

types: $(VENV)/.test
	$(BIN)/mypy

smoke: $(VENV)/.test
	timeout 300 $(BIN)/python -m benchmarks --smoke

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks $(ARGS)

zoo: $(VENV)/.test
	timeout 1260 $(BIN)/python -m benchmarks.zoo $(ARGS)

# What the app needs, and nothing more.
$(VENV)/.app: requirements.txt | $(VENV)/bin/python
	$(BIN)/pip install -q -r requirements.txt
	@touch $@

# What tests, checks and benchmarks need besides; the package itself is linked, not copied, so that the checkout is tested.
$(VENV)/.test: requirements.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install -q -r requirements.txt -e '.[test,peers,check,zoo,data]'
	@touch $@ $(VENV)/.app

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV) || { $(MAKE) --no-print-directory system PACKAGES=python3-venv && $(PYTHON) -m venv --clear $(VENV); }
	$(BIN)/pip install -q --upgrade pip

# Tests in the browser use any Chromium or Chrome; without one, and without the right to install it, they skip.
chromium:
	@command -v chromium-headless-shell chromium chromium-browser google-chrome >/dev/null \
	    || $(MAKE) --no-print-directory system PACKAGES="chromium-headless-shell fonts-dejavu-core" \
	    || $(MAKE) --no-print-directory system PACKAGES="chromium fonts-dejavu-core" \
	    || echo "No Chromium here and it could not be installed: the tests in the browser will be skipped."

.PHONY: system
system:
	@command -v apt-get >/dev/null || { echo "Please install: $(PACKAGES)"; exit 1; }
	@sudo=$$([ "$$(id -u)" = 0 ] || echo "sudo -n"); \
	    $$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq --no-install-recommends $(PACKAGES) >/dev/null

clean:
	rm -rf $(VENV) *.egg-info build .pytest_cache .ruff_cache .mypy_cache
