# `make demo` speaks a sentence, `make test` runs every check. Both first make .venv, once; needs Python 3.11+ and pip.

PYTHON ?= python3
VENV ?= .venv
# A fixed torch, which an index of CPU builds can serve. For another one: make demo TORCH=torch
TORCH ?= torch==2.13.0
SENTENCE ?= Hello! This is M star, speaking to you from one small machine.

BIN := $(VENV)/bin
PLUGINS := $(wildcard plugins/*)
PROJECTS := pyproject.toml $(PLUGINS:%=%/pyproject.toml)
SOURCES := mstar_core $(PLUGINS:%=%/src)

.PHONY: demo test lint types unit clean

demo: $(VENV)/.installed
	$(BIN)/mstar run orpheus "$(SENTENCE)" --seed 1 -o demo.wav
	@echo "Listen to $(CURDIR)/demo.wav: the bundled checkpoint has random weights, so it sounds like noise."
	@echo "For a voice, with access to it on the hub: $(BIN)/mstar run orpheus \"...\" -o voice.wav --checkpoint 3b-ft"

test: lint types unit

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-test
	$(BIN)/mypy $(SOURCES)

unit: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q

# Torch comes first and by its exact version, so that no later requirement pulls in another build of it.
$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q "$(TORCH)"
	touch $@

$(VENV)/.installed: $(VENV)/.torch $(PROJECTS)
	$(BIN)/python -m pip install -q -e . $(PLUGINS:%=-e %)
	touch $@

$(VENV)/.installed-test: $(VENV)/.torch $(PROJECTS)
	$(BIN)/python -m pip install -q -e ".[test,bench]" $(PLUGINS:%=-e %)
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) demo.wav dist build
