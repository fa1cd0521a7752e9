# `make demo` speaks a sentence, `make test` runs every check; both make .venv first. Needs Python >= 3.11 and pip.

PYTHON ?= python3
# A CPU build of torch by default: set TORCH=torch for the newest, or to a CUDA build's requirement.
TORCH ?= torch==2.13.0
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := mstar_core plugins/mstar-orpheus/src
SENTENCE ?= Hello! This is M star, speaking to you from one small machine.

.PHONY: demo test lint types unit clean

demo: $(VENV)/.installed
	$(BIN)/mstar run orpheus "$(SENTENCE)" --seed 1 -o demo.wav
	@echo "spoken into $(CURDIR)/demo.wav (the bundled checkpoint has random weights: it sounds like noise)"

test: lint types unit

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-test
	$(BIN)/mypy $(SOURCES)

unit: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q

$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q "$(TORCH)"
	touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml plugins/mstar-orpheus/pyproject.toml
	$(BIN)/python -m pip install -q -e . -e plugins/mstar-orpheus
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install -q -e ".[test,bench]" -e plugins/mstar-orpheus
	touch $@

clean:
	rm -rf $(VENV) demo.wav dist build
