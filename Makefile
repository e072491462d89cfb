# Two commands for a newcomer: `make run` and `make test`. Each sets up .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: run test test-slow check docs bench clean

run: $(STAMP)  ## an example and small versions of the experiments; prints where the pictures are
	$(BIN)/python examples/minimize_2d.py
	$(BIN)/dcem reproduce --quick

test: $(STAMP) check  ## lint, types, layering, tests
	$(BIN)/python -m pytest -q -n 2 -m "not gpu and not slow" --cov --cov-report=term:skip-covered

test-slow: $(STAMP)  ## the nightly checks
	$(BIN)/python -m pytest -q -m slow

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: $(STAMP)  ## the documentation, into out/docs
	$(BIN)/python -m sphinx -W -q -b html docs out/docs
	@echo "open out/docs/index.html"

bench: $(STAMP)  ## speed and memory beside peers, tables under benchmarks/results
	$(BIN)/python benchmarks/run.py

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0  # first and by release: a later requirement must not pull another build
	$(PIP) --constraint constraints.txt --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) out
