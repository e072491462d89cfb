# Two commands for a newcomer: `make run` and `make test`. Each sets up what it needs inside this folder.
PYTHON ?= python3
BIN := .venv/bin
LIBRARY := .venv-library/bin
KERNELS := .venv-kernels/bin
PIP := -m pip install --quiet --disable-pip-version-check
TORCH := torch==2.13.0  # first and by release: a later requirement must not pull another build
TRITON := triton==3.9.0

# Versions of Python and torch in addition to those of `make test`: the oldest supported ones, and the newest.
VERSIONS := 3.11/2.9.1 3.12/2.13.0 3.13/2.13.0 3.13/2.15.0 3.14/2.15.0

.PHONY: run test test-library test-kernels test-versions test-lab test-slow soak check docs tables outputs bench dist clean

run: .venv/installed  ## an example and small versions of the experiments; prints where the pictures are
	$(BIN)/python examples/minimize_2d.py
	$(BIN)/dcem reproduce --quick

test: check test-library test-lab  ## lint, types, layering, tests of the library and of the lab

test-library: .venv-library/installed  ## the library's tests, where there is torch and nothing of the lab
	@$(LIBRARY)/python -m pytest -q -m "not gpu and not slow" tests/*/ & parts=$$!; \
	$(LIBRARY)/python -m pytest -q -m "not gpu and not slow" tests/*.py; code=$$?; \
	wait $$parts && exit $$code

test-kernels: .venv-kernels/installed  ## the kernels for CUDA without a GPU: Triton interprets and compiles them
	TRITON_INTERPRET=1 $(KERNELS)/python -m pytest -q -m interpreter tests/kernels
	TRITON_INTERPRET=1 $(KERNELS)/python -m pytest -q -c lab/pyproject.toml lab/tests/kernels

test-versions:  ## the library's tests with other versions of Python and torch, as far as the machine has them
	@for pair in $(VERSIONS); do bash tests/versions.sh $${pair%/*} $${pair#*/} || exit 1; done

test-lab: .venv/installed
	$(BIN)/python -m pytest -q -n 2 -c lab/pyproject.toml -m "not gpu and not slow and not soak" lab/tests

test-slow: .venv/installed  ## the nightly checks
	$(BIN)/python -m pytest -q -m slow
	$(BIN)/python -m pytest -q -c lab/pyproject.toml -m slow lab/tests

soak: .venv/installed  ## every number of lab/docs/reliability.md measured again, an hour; ONLY=kills for one of them
	$(BIN)/python -m pytest -q -c lab/pyproject.toml -m soak $(if $(ONLY),-k "$(ONLY)]") lab/tests/reliability
	PYTHONPATH=lab/tests $(BIN)/python -m reliability.publish

check: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: .venv/installed  ## the documentation, into out/docs
	$(BIN)/python -m sphinx -W -q -b html -c docs . out/docs
	@echo "open out/docs/docs/index.html"

tables: .venv/installed  ## the tables of README and docs, rebuilt from the files of results
	$(BIN)/python -m dcem_lab.study.tables

outputs: .venv/installed  ## what the code blocks of the docs print, written into the pages again
	PYTHONPATH=lab/tests $(BIN)/python -m printed README.md docs/*.md lab/docs/*.md

bench: .venv/installed  ## speed and memory compared with other packages, tables under benchmarks/results
	$(BIN)/dcem bench

dist: .venv/installed  ## both wheels, into out/dist
	rm -rf out/dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w out/dist . ./lab

.venv/installed: pyproject.toml lab/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python $(PIP) $(TORCH)
	$(BIN)/python $(PIP) --constraint constraints.txt --editable . --editable './lab[test]'
	touch $@

.venv-library/installed: pyproject.toml constraints.txt
	test -x $(LIBRARY)/python || $(PYTHON) -m venv .venv-library
	$(LIBRARY)/python $(PIP) $(TORCH)
	$(LIBRARY)/python $(PIP) --constraint constraints.txt --editable '.[test]'
	touch $@

.venv-kernels/installed: pyproject.toml lab/pyproject.toml constraints.txt
	test -x $(KERNELS)/python || $(PYTHON) -m venv .venv-kernels
	$(KERNELS)/python $(PIP) $(TORCH)
	$(KERNELS)/python $(PIP) --constraint constraints.txt --editable '.[test]' --editable ./lab gymnasium $(TRITON)
	touch $@

clean:
	rm -rf .venv .venv-library .venv-kernels .venv-versions out
