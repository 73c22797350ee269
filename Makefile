# Everything starts here: `make demo` and `make test` make their own environment when there is none.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
CODE = src tests benchmarks examples
# Empty is unset: without bytecode on disk every start compiles three thousand modules anew.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test lint slow gpu bench-gpu gpu-ranks clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt uv
	UV_FIND_LINKS="$${PIP_FIND_LINKS:-}" $(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/tiergnn demo
	@echo "(where the shell does not find tiergnn: . $(BIN)/activate)"

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "not slow and not gpu"

lint: $(STAMP)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

slow: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "slow"

# Runs from the source tree with whatever python holds torch and triton: nothing is installed.
gpu:
	PYTHONPATH=src $(PYTHON) -m pytest tests -m "gpu"

# Some 20 minutes; `HALF=1` and `HALF=2` are at most ten each.
HALF ?= 1 2
bench-gpu:
	PYTHONPATH=src $(PYTHON) benchmarks/gpu_all.py --half $(HALF)

# On a machine with 2, 4 or 8 GPUs, some 8 minutes; what ranks, cells and ways are: `--help`.
RANKS_ARGS ?=
gpu-ranks:
	PYTHONPATH=src $(PYTHON) benchmarks/ranks_gpu.py $(RANKS_ARGS)

clean:
	rm -rf $(VENV) build dist
