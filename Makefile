# `make demo` and `make test` need python3, python3-venv, git and make; everything else goes into .venv, in this folder.
# Both may be repeated: what is done and still fresh is skipped.

SYSTEM_PYTHON ?= python3
VENV := .venv
PYTHON := $(VENV)/bin/python
PIP_INSTALL := $(PYTHON) -m pip install --disable-pip-version-check --constraint constraints.txt

DEMO := $(VENV)/.demo
INSTALLED := $(VENV)/.installed
WHEEL_DIR := build/wheel-under-test
WHEEL := $(WHEEL_DIR)/.installed
VISION := build/vision
USER := build/user
SOURCES := $(shell find hf_multisource training benchmarks tests -type f -not -name '*.pyc' 2>/dev/null) \
	pyproject.toml MANIFEST.in README.md LICENSE

.DELETE_ON_ERROR:
.PHONY: help demo test test-matrix test-shared fuzz lint install clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' Makefile

demo: $(DEMO)  ## train a small three-source model on generated phrases and examine it (minutes)
	$(PYTHON) training/demo.py

# One process a core; each wants about 1 GB.
PARALLEL ?= -n auto --maxprocesses 8 --dist worksteal

# pytest by its script, not by -m: that would put this folder, and so the source tree, before the wheel.
TESTED := PYTHONPATH="$(CURDIR)/$(WHEEL_DIR)" WHEEL_UNDER_TEST="$(CURDIR)/$(WHEEL_DIR)" DISTRIBUTIONS="$(CURDIR)/dist"

test: lint $(WHEEL) $(VISION)/.installed $(USER)/.installed  ## lint, types, then the tests against the built wheel
	$(TESTED) $(VISION)/bin/python $(VENV)/bin/pytest -m '(vision or quantized) and not (slow or gpu)'
	$(TESTED) USER_ENVIRONMENT="$(CURDIR)/$(USER)" $(VENV)/bin/pytest $(PARALLEL) -m 'not (slow or gpu or vision or quantized)'

# The oldest supported Transformers and the newest there is, each in an environment of its own.
TEST_MATRIX ?= 5.17 newest
test-matrix: $(WHEEL) $(TEST_MATRIX:%=build/matrix/%/.installed)  ## the tests on the oldest and newest Transformers
	@for version in $(TEST_MATRIX); do \
		PYTHONPATH="$(CURDIR)/$(WHEEL_DIR)" build/matrix/$$version/bin/pytest $(PARALLEL) || exit 1; done

build/matrix/%/.installed: pyproject.toml constraints.txt | $(VENV)/bin/pip
	rm -rf $(@D) && $(SYSTEM_PYTHON) -m venv $(@D)
	grep -vE '^(transformers|tokenizers|huggingface_hub)==' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install --quiet --constraint $(@D)/constraints.txt torch setuptools
	$(@D)/bin/python -m pip install --quiet --constraint $(@D)/constraints.txt --no-build-isolation \
		"transformers$(if $(filter newest,$*),,==$*.*)" ".[demo,dev,graph,localization,plots,serve,train]"
	touch $@

# Transformers installs no tests, but its source distribution holds the shared ones.
TRANSFORMERS_TESTS ?= build/transformers/tests
test-shared: $(INSTALLED) $(TRANSFORMERS_TESTS)  ## the shared model tests of Transformers, on our models
	TRANSFORMERS_TESTS=$(TRANSFORMERS_TESTS) $(VENV)/bin/pytest -o addopts=--import-mode=importlib -W ignore \
		tests/integration/shared_suite.py

build/transformers/tests: $(INSTALLED)
	$(PIP_INSTALL) --quiet parameterized
	rm -rf build/transformers && mkdir -p build/transformers
	$(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --no-build-isolation \
		--dest build/transformers transformers==$$($(PYTHON) -c 'import transformers; print(transformers.__version__)')
	tar -xzf build/transformers/*.tar.gz -C build/transformers --strip-components=1 --wildcards '*/tests'
	touch $@

# Examples of each target. A repeated run takes the same inputs with FUZZ=--seed=NUMBER.
EXAMPLES ?= 3000
fuzz: $(WHEEL)  ## broken input of every kind, thousands of each; writes docs/fuzzing.md
	$(TESTED) OMP_NUM_THREADS=1 $(PYTHON) tests/fuzz/campaign.py --examples $(EXAMPLES) --page docs/fuzzing.md $(FUZZ)

lint: $(INSTALLED)  ## ruff, mypy and pydoclint
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	$(PYTHON) -m pydoclint.main --quiet hf_multisource

install: $(INSTALLED)  ## the environment in .venv, with the package editable

clean:  ## remove build products and caches; .venv stays
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find hf_multisource training benchmarks tests -name __pycache__ -prune -exec rm -rf {} +

missing = { echo "$(1) is missing: sudo apt-get install $(2)" >&2; exit 1; }

# pip is the last thing a new environment gets, so its presence says that the environment is whole.
$(VENV)/bin/pip:
	@command -v git >/dev/null || $(call missing,git,git)
	@command -v $(SYSTEM_PYTHON) >/dev/null || $(call missing,$(SYSTEM_PYTHON),python3)
	@$(SYSTEM_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		$(call missing,Python 3.10 or newer ($(SYSTEM_PYTHON) is older),python3 -- or name another: make SYSTEM_PYTHON=python3.12)
	@$(SYSTEM_PYTHON) -c 'import ensurepip, venv' 2>/dev/null || $(call missing,venv,python3-venv)
	$(SYSTEM_PYTHON) -m venv $(VENV)

# torch first and alone: its pin decides the build, before anything that merely depends on it can ask for another.
# No torchvision: only timm needs it, and one that does not fit torch breaks all of Transformers.
$(DEMO): pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(PIP_INSTALL) torch setuptools
	$(PIP_INSTALL) --no-build-isolation --editable ".[demo,train]"
	touch $@

$(INSTALLED): $(DEMO)
	$(PIP_INSTALL) --no-build-isolation --editable ".[demo,dev,graph,localization,plots,serve,train]"
	touch $@

# .venv, and on top what few tests need: timm and torchvision; and what makes every process start a second later.
$(VISION)/.installed: $(INSTALLED)
	rm -rf $(VISION) && $(SYSTEM_PYTHON) -m venv $(VISION)
	$(PYTHON) -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' \
		> "$$($(VISION)/bin/python -c 'import site; print(site.getsitepackages()[0])')/base.pth"
	$(VISION)/bin/python -m pip install --disable-pip-version-check --constraint constraints.txt --no-deps \
		timm torchvision bitsandbytes torchao
	touch $@

# The environment of a user: the wheel with its extra `train`, and nothing else.
$(USER)/.installed: $(WHEEL)
	test -x $(USER)/bin/pip || { $(SYSTEM_PYTHON) -m venv $(USER) && \
		$(USER)/bin/pip install --disable-pip-version-check --constraint constraints.txt torch; }
	$(USER)/bin/pip install --disable-pip-version-check --constraint constraints.txt --force-reinstall --no-deps dist/*.whl
	$(USER)/bin/pip install --disable-pip-version-check --constraint constraints.txt "$$(echo dist/*.whl)[train]"
	touch $@

# The wheel is built from the unpacked sdist, so the sdist is proved too, and goes beside the editable install, not over it.
$(WHEEL): $(SOURCES) $(INSTALLED)
	rm -rf dist $(WHEEL_DIR)
	$(PYTHON) -m build --quiet --no-isolation
	$(PIP_INSTALL) --no-deps --target $(WHEEL_DIR) dist/*.whl
	touch $@
