# Two commands for a newcomer: `make run` and `make test`. Each sets up .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: run browser test test-slow soak check docs tables bench clean

run: $(STAMP)  ## an example and small versions of the experiments; prints where the pictures are
	$(BIN)/python examples/minimize_2d.py
	$(BIN)/dcem reproduce --quick

test: $(STAMP) check browser  ## lint, types, layering, tests
	$(BIN)/python -m pytest -q -n 2 -m "not gpu and not slow and not soak" --cov --cov-report=term:skip-covered

browser:  ## what tests of the report's page need; without it they are skipped
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	  && apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium; \
	} >/dev/null 2>&1 || echo "chromium cannot be installed here: tests that need a browser are skipped"

test-slow: $(STAMP)  ## the nightly checks
	$(BIN)/python -m pytest -q -m slow

soak: $(STAMP)  ## every figure of docs/reliability.md measured anew, an hour; ONLY=kills for one of them
	$(BIN)/python -m pytest -q -m soak $(if $(ONLY),-k "$(ONLY)]") tests/reliability
	PYTHONPATH=tests $(BIN)/python -m reliability.publish

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: $(STAMP)  ## the documentation, into out/docs
	$(BIN)/python -m sphinx -W -q -b html docs out/docs
	@echo "open out/docs/index.html"

tables: $(STAMP)  ## the tables of README and docs anew, from results/ and benchmarks/results
	$(BIN)/python -m dcem.report.documents

bench: $(STAMP)  ## speed and memory beside peers, tables under benchmarks/results
	$(BIN)/dcem bench

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0  # first and by release: a later requirement must not pull another build
	$(PIP) --constraint constraints.txt --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) out
