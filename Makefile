# Every target sets up what it needs, from a fresh clone on: a virtual environment in .venv with the versions of constraints.txt.
PYTHON ?= python3
RUN := .venv/bin/python -m
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: demo test check check-slow bench docs train-more
.DELETE_ON_ERROR:

.venv/stamp: pyproject.toml constraints.txt $(wildcard setup.py src/polyseme/kernels/*.[ch])
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	$(RUN) pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]' </dev/null
	touch $@

demo: .venv/stamp  ## a model at work
	.venv/bin/python recipes/demo.py

test: .venv/stamp  ## what continuous integration runs
	$(ONE_THREAD) $(RUN) pytest

check: .venv/stamp  ## style and types
	$(RUN) ruff check . && $(RUN) ruff format --check . && .venv/bin/pyrefly check

check-slow: .venv/stamp  ## the heavier checks
	$(RUN) pytest -m slow

bench: .venv/stamp  ## every published number
	for script in benchmarks/*.py; do .venv/bin/python $$script || exit 1; done

docs: .venv/stamp  ## the documentation, into site/
	.venv/bin/python docs/api.py && .venv/bin/zensical build --clean --strict

TEXT ?= ../shared/data/corpus/*.txt.xz
HELDOUT ?= ../shared/data/corpus/heldout/*.txt.xz
MORE ?= 10000000

build/corpus: | .venv/stamp
	.venv/bin/polyseme prepare '$(TEXT)' --output $@

train-more: .venv/stamp build/corpus  ## let the bundled model see MORE tokens of TEXT, and measure it again on HELDOUT
	.venv/bin/polyseme pretrain build/corpus --output build/train-more --from en-small --more $(MORE) \
		--export src/polyseme/models/en-small --dtype float16
	rm -r build/train-more
	.venv/bin/python recipes/en_small_card.py '$(HELDOUT)'
