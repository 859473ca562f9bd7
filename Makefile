# `make test` needs nothing but Python 3.11 or newer: it makes .venv, installs everything and runs every check.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: test lint types unit install clean

test: lint types unit

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet torch -c constraints.txt
	$(BIN)/python -m pip install --quiet -e '.[dev]' -c constraints.txt
	touch $@

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

unit: install
	$(BIN)/python -m pytest -n auto $(PYTEST_ARGS)

clean:
	rm -rf $(VENV) build dist
