# `make test` needs nothing but Python 3.11 or newer: it makes .venv, installs everything and runs every check.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Python keeps its bytecode, whatever the shell says: else each process that a test starts compiles the package anew, and
# each worker of pytest compiles every test.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: test lint types unit slow whole zoo docs site minimum other release-check same-answers hostile silent-options mutants mutants-drawn accuracy install wheels \
	calibrate-gpu clean

# The checks run beside each other, and each prints what it has to say when it ends.
CHECKS := lint types docs unit slow
test: install
	$(MAKE) --no-print-directory --jobs=$(words $(CHECKS)) --keep-going --output-sync=target $(CHECKS)

install: $(VENV)/.installed

# The CPU build of torch: from where pip looks anyway (a folder of --find-links, a mirror, macOS), else from its
# publisher's index, which is asked for torch alone and not waited for long where it cannot be reached.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH := -m pip install --quiet torch -c constraints.txt
# What pip says where it fails is kept, and one sentence says what it means.
PIP_SAYS := $(VENV)/pip.log
NO_INDEX := pip could not install what pyproject.toml names: no package index answers, or it lacks a release (what pip \
	said: $(PIP_SAYS)); PIP_INDEX_URL=URL names another index

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip > $(PIP_SAYS) 2>&1 || { echo "$(NO_INDEX)" >&2; exit 1; }
	@$(BIN)/python $(TORCH) 2> /dev/null || $(BIN)/python $(TORCH) --extra-index-url $(TORCH_INDEX) --timeout 15 --retries 1 \
		> $(PIP_SAYS) 2>&1 \
		|| { echo "no CPU build of torch, of the version in constraints.txt: pip finds none, nor at $(TORCH_INDEX) (what pip" \
		"said: $(PIP_SAYS)); TORCH_INDEX=URL names another index, PIP_FIND_LINKS a folder with the wheel" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet -e '.[dev]' -c constraints.txt > $(PIP_SAYS) 2>&1 \
		|| { echo "$(NO_INDEX)" >&2; exit 1; }
	touch $@

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tools.words

types: install
	$(BIN)/mypy

# Of the tests that take longest (tests/dear.txt) `unit` and `slow` run a tenth, others for each commit.
unit: install
	DEAR_TESTS=drawn $(BIN)/python -m pytest -q -n auto --dist worksteal -m 'not slow' $(PYTEST_ARGS)

# All of them, and the list anew: ahead of a release, and when what is dear has changed.
whole: install
	DEAR_TESTS=measured $(BIN)/python -m pytest -q -n auto --dist worksteal

# Tests that wait more than they compute: of a browser, of a package that is built, of a process that is stopped.
slow: install
	DEAR_TESTS=drawn $(BIN)/python -m pytest -q -m slow $$(grep -rl 'mark\.slow' tests --include='test_*.py') $(PYTEST_ARGS)

# Every model that transformers builds, where `unit` takes a sample: .ci/run asks for it when the kept hash of what it
# depends on is no longer that of the code. Commit the new one.
zoo: install
	INFERPLAN_ZOO=whole $(BIN)/python -m pytest -q -n $(ZOO_PROCESSES) --dist worksteal tests/oracle
	$(BIN)/python -m tests.oracle.zoo --write
ZOO_PROCESSES ?= auto

# Headers of files that claim what they do not hold, and command lines that nobody means: two thousand of each, each in a process of its own.
hostile: install
	$(BIN)/python -m tests.hostile_headers 2000
	$(BIN)/python -m tests.hostile_options 2000

# Every option of every command, given to a line on which it should matter: those that change nothing, unsaid. Half an hour.
silent-options: install
	$(BIN)/python -m tests.silent_options $(ARGS)

# Some five hundred questions to a commit and to the working tree: answers to 1e-9, exit codes, classes of errors.
same-answers: install
	$(BIN)/python -m tools.same_answers $(BASE)

# Small mistakes planted in our code, and the tests that must notice (docs/architecture.md). ARGS="--only inferplan/serving
# --draw 200 --seed 3" draws; without ARGS all of them, which takes hours.
MUTANTS = OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tools.mutants
mutants: install
	$(MUTANTS) $(ARGS)

# Of the mutants that died before, as many as a minute of CPU time allows: they must die again.
mutants-drawn: install
	$(MUTANTS) --killed-before --draw 48

# Constants of serving, error bands and the pages of accuracy, made again from the measured rows in SHARED.
SHARED ?= ../shared
UNSEEN := build/unseen.csv
accuracy: install
	mkdir -p build
	$(BIN)/python -m tools.fitting serving $(SHARED)/measured/serving.csv --unseen $(UNSEEN)
	$(BIN)/python -m tools.fitting bands $(SHARED)/measured --unseen $(UNSEEN) --deviations tests/fixtures/served_deviations.csv
	$(BIN)/python -m tools.fitting forms $(SHARED)/measured
	$(BIN)/python -m tools.accuracy $(SHARED) --unseen $(UNSEEN)
	$(BIN)/python -m tools.fitting late $(SHARED)/measured
	$(BIN)/python -m tools.accuracy percentiles
	for page in scale-out devices encoders parts; do $(BIN)/python -m tools.accuracy $$page $(SHARED) || exit 1; done

# The site in build/site-docs; a broken link, a page outside the navigation or an undocumented name is an error.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# The same with the command line in the browser beside it, in build/site-docs/run: npm fetches Pyodide, node runs it once.
site: docs
	$(BIN)/python -m browser.build build/site-docs/run

# The lowest releases that pyproject.toml admits, on the lowest Python: the README's command as it is installed there,
# then the tests in which other releases could answer otherwise: of the command line, of files that are read, of arrays, and
# of every extra that is not torch.
MINIMUM_PYTHON ?= python3.11
MINIMUM := build/minimum
TEST_PROCESSES ?= auto
SHORT_TESTS := $(patsubst %,tests/cli/test_%.py,estimate extras import settings simulate start) \
	tests/golden tests/test_checkpoint.py tests/test_memory.py \
	tests/test_readme.py tests/test_report.py tests/test_roofline.py tests/test_units.py tests/planning/test_api.py \
	tests/planning/test_compare.py tests/planning/test_plots.py tests/planning/test_sweep.py \
	tests/web/test_jobs.py tests/web/test_openapi.py
README_COMMAND := $(shell sed -n 's/.*&& inferplan \(estimate .*\)/\1/p' README.md)
minimum:
	$(MINIMUM_PYTHON) -m venv --clear $(MINIMUM)
	$(MINIMUM_PYTHON) tests/lowest.py > $(MINIMUM)/lowest.txt
	$(MINIMUM)/bin/python -m pip install --quiet . -c $(MINIMUM)/lowest.txt
	cd $(MINIMUM) && bin/inferplan $(README_COMMAND) > /dev/null
	$(MINIMUM)/bin/python -m pip install --quiet '.[all]' pytest pytest-xdist hypothesis -c $(MINIMUM)/lowest.txt
	$(MINIMUM)/bin/python -m pytest -q -n $(TEST_PROCESSES) -W ignore -p no:cacheprovider -m 'not slow' $(SHORT_TESTS)
# The extra mcp asks for a newer pydantic than the others: its own lowest release, after them.
	$(MINIMUM)/bin/python -m pip install --quiet '.[mcp]' "$$(grep ^mcp== $(MINIMUM)/lowest.txt)"
	$(MINIMUM)/bin/python -m pytest -q -W ignore -p no:cacheprovider -m 'not slow' tests/web/test_assistants.py

# The newest releases on another Python, by the same tests.
OTHER_PYTHON ?= python3.13
other:
	$(OTHER_PYTHON) -m venv --clear build/other
	build/other/bin/python -m pip install --quiet '.[all]' pytest pytest-xdist hypothesis
	build/other/bin/python -m pytest -q -n $(TEST_PROCESSES) -W ignore -p no:cacheprovider -m 'not slow' $(SHORT_TESTS)

# What is released, as a stranger gets it: the wheel that is built from the source distribution, in an environment with its
# dependencies alone, prints what the README shows. What is in both files, tests/test_packaging.py checks.
RELEASE := build/release
release-check: install
	rm -rf build/dist
	$(BIN)/python -m build --no-isolation --outdir build/dist . > /dev/null
	$(PYTHON) -m venv --clear $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet build/dist/*.whl
	cd $(RELEASE) && env -u PYTHONPATH bin/inferplan $(README_COMMAND) > printed.txt
	awk '/^```text/ {shown = 1; next} /^```/ && shown {exit} shown' README.md | diff - $(RELEASE)/printed.txt

# What a machine with a GPU and no network lacks, gathered on one with a network: `make wheels`, then copy the checkout.
GPU_WHEELS ?= pydantic
GPU_WHEELS_PYTHON ?= 3.12
wheels:
	$(PYTHON) -m pip download --quiet --only-binary=:all: --implementation cp --python-version $(GPU_WHEELS_PYTHON) \
		--platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
		--dest build/wheels $(GPU_WHEELS)

# Measures the GPU of this machine; ends within nine minutes, and goes on where it stopped when it is called again.
GPU_PYTHON ?= python3
GPU_BUDGET ?= 7m30s
calibrate-gpu:
	if ls build/wheels/*.whl >/dev/null 2>&1; then $(GPU_PYTHON) -m pip install --quiet --no-index --no-deps --upgrade \
		--target build/site build/wheels/*.whl; fi
	PYTHONPATH="$(CURDIR):$(CURDIR)/build/site" $(GPU_PYTHON) -m calibrate --device cuda --budget $(GPU_BUDGET) --resume \
		$(GPU_ARGS)

clean:
	rm -rf $(VENV) build dist
