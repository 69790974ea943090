# Two commands do all the set-up: `make demo` runs the main job, `make test` checks everything.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo docs docs-serve test test-all browser-test gpu-test torture check lint types clean

demo: .venv/ready
	$(BIN)/metareplay demo

test: .venv/ready lint types
	$(BIN)/pytest -n auto --dist loadfile -m "not slow"

# Also what takes a minute each, and more examples where inputs vary.
test-all: .venv/ready lint types
	$(BIN)/pytest -n auto --dist loadfile --hypothesis-profile thorough

# Pages in a real browser. Chromium must be there, and npm, from which axe-core comes once.
browser-test: .venv/ready .venv/axe/ready
	$(BIN)/pytest browser_tests -s

.venv/axe/ready: .venv/ready
	@command -v npm > /dev/null || { echo "npm is missing, from which axe-core comes (Debian: apt install npm)"; exit 1; }
	npm install --silent --no-audit --no-fund --prefix .venv/axe axe-core@4
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt -e '.[browser]'
	touch $@

# The documentation as a site, in site/; broken links fail. `make docs-serve` shows it and follows changes.
docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --clean

docs-serve: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

# On a machine with a GPU; any Python that has torch will do: make gpu-test PYTHON=python3
gpu-test:
	$(PYTHON) -m gpu_tests

# Kills, damaged files, interrupts, wrong calls: minutes on a free core; `python -m torture --long` takes hours.
torture: .venv/ready
	$(BIN)/python -m torture

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready
	$(BIN)/mypy

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check --no-compile -q -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
