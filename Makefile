# Two commands do everything on a fresh Linux machine with Python 3.11 or newer:
#   make demo    set up .venv, train DyRep on a generated log, write runs/demo/report.html
#   make test    set up .venv, run the tests

PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python
OUTPUT ?= runs/demo
export NEUTRONSTREAM_DATA ?= $(abspath ../shared/data)

.PHONY: setup demo test test-slow test-device lint types layers check clean

setup: $(VENV)/.done

$(VENV)/.done: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(RUN) -m pip install --quiet --disable-pip-version-check -e '.[mpi,snapshots,test]'
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps torch-geometric-temporal
	touch $@

demo: setup
	$(VENV)/bin/neutronstream train demo --output $(OUTPUT) --force

test: setup
	$(RUN) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-slow: setup
	$(RUN) -m pytest -m slow

test-device: setup
	NEUTRONSTREAM_TEST_DEVICE=elsewhere $(RUN) -m pytest -k elsewhere tests/parallel/test_exact.py tests/parallel/test_segment.py

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: setup
	$(VENV)/bin/mypy

layers: setup
	$(VENV)/bin/lint-imports

check: test lint types layers

clean:
	rm -rf $(VENV) runs
