# Every target sets up what it needs in .venv by itself.
PYTHON ?= python3
BIN := .venv/bin

# Tests and benchmarks on real data look here; the package itself knows nothing of this folder.
ifneq ($(wildcard ../shared/data),)
export SPIDER_DATA ?= $(abspath ../shared/data)
endif

# Four test processes for two cores: those that test brokers, the service and Ray mostly wait.
PYTEST := $(BIN)/python -m pytest -n 4 --dist worksteal

.PHONY: demo quick test lint bench docs clean

demo: .venv/demo
	$(BIN)/spider demo
	@echo "(The command is $(BIN)/spider; after 'source $(BIN)/activate' it is just spider.)"

# What one runs before every commit: the product, without the tests that take seconds.
quick: .venv/installed
	$(PYTEST) -m "not slow and not study"

test: .venv/installed
	$(PYTEST)

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/lint-imports --config study/pyproject.toml

bench: .venv/installed
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/accuracy.py

# Fails on a broken link or a missing anchor. To read it: python -m http.server -d build/docs/site
# (the pages open as files too, but browsers allow the search only from a server).
# The two pages about commands are replaced whole: tests may be reading them.
docs: .venv/installed
	mkdir -p build
	$(BIN)/spider docs > build/command.md
	mv build/command.md docs/command.md
	$(BIN)/spider-study docs > build/command.md
	mv build/command.md study/docs/command.md
	$(BIN)/python docs/site/build.py

# The demo needs the product with its pictures and the flights, everything else all extras and the study.
.venv/demo: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	touch $@

.venv/installed: pyproject.toml study/pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]' --editable ./study
	touch $@ .venv/demo

clean:
	rm -rf .venv demo-output dist build
	find . -name '__pycache__' -prune -exec rm -rf {} +
