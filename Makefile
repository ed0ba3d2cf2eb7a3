# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint bench fuzz null-tables clean

demo: $(VENV)/.demo
	$(BIN)/alimark demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check src tests benchmarks tools
	$(BIN)/ruff format --check src tests benchmarks tools
	$(BIN)/mypy
	for file in tests/*/conftest.py; do $(BIN)/mypy $$file || exit 1; done
	$(BIN)/lint-imports

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/alignment.py
	$(BIN)/python benchmarks/embedding.py
	$(BIN)/python benchmarks/detection.py --sizes 4,8,16,32

# Ten minutes for each kind of input; `make fuzz SECONDS=60` takes less.
SECONDS ?= 600
fuzz: $(VENV)/.dev
	$(BIN)/python tools/fuzz.py --seconds $(SECONDS)

null-tables: $(VENV)/.dev
	$(BIN)/python tools/null_tables.py --write --figure docs/null.png

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The demo needs no torch: an embedder on onnxruntime, a language model on llama.cpp and a small translator.
$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[llama-cpp,translate]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[llama-cpp,transformers,openai,sentence-transformers,plot,bench,splitters,translate,words,documents,serve,postgres,ray,dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
