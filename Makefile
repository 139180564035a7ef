# Every chore is one verb. `make` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
VENV ?= .venv
JOBS ?= 7
TIME ?= 60s
BIN := $(VENV)/bin
# Some containers forbid Python to keep what it compiles; each process of the tests would do it anew.
unexport PYTHONDONTWRITEBYTECODE
# Several files are tested at a time: each process with a thread of OpenBLAS for each processor takes 15% more of them.
export OPENBLAS_NUM_THREADS := 1
# Without the bindings, which have no tests: they would be built in another way than for the wheel, and again for it.
# Optimised, but not linked as one whole as the wheel is: that takes three times as long to build.
RUST_TESTS := CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG=0 \
	cargo test --release --workspace --exclude pgsweep-bindings --quiet --target-dir target/tests
RUST_SOURCES := $(shell find core probe bindings -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock

.PHONY: help setup demo test test-quick same-answers test-matrix test-wheel test-packaging test-arm64 test-macos fuzz lint format bench docs screenshots wheel clean

help: ## list the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(VENV)/.ready ## make .venv with everything in it, the Rust module built in release mode

$(VENV)/.packages: constraints.txt pyproject.toml
	tools/debian-packages setup
	python3 -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --requirement requirements-dev.txt
	@touch $@

$(VENV)/.ready: $(VENV)/.packages $(RUST_SOURCES)
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@

demo: setup ## the whole story on a private PostgreSQL, with an HTML report
	$(BIN)/pgsweep demo

test: setup ## all tests (as root on Debian: installs the server and the browser they use)
	tools/debian-packages test
	@# Beside the build of the crates' tests Python compiles its own: otherwise each worker would do it.
	$(RUST_TESTS) --no-run & built=$$!; $(BIN)/pytest --collect-only --quiet --quiet > /dev/null || true; wait $$built
	@# The crates' tests take some seconds of one processor; their log stands behind that of the others.
	log=$$(mktemp); $(RUST_TESTS) > $$log 2>&1 & crates=$$!; failed=0; \
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder || failed=$$?; \
	wait $$crates || failed=$$?; cat $$log; rm $$log; exit $$failed

test-quick: setup ## the tests that need no server, in a minute or so
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --quiet -m "not slow and not server"

same-answers: setup ## ask the small recordings of tests/answers again: is each answer as before, byte for byte? (OPTIONS="--write" writes them anew)
	$(BIN)/python -m tools.same_answers $(OPTIONS)

test-matrix: setup ## the tests that speak to a server, on PostgreSQL 14 to 19 (fetched into .servers) and Debian's 15
	tools/debian-packages test
	tools/postgresql-matrix $(BIN)/pip
	tools/postgresql-19 $(BIN)/pip
	$(BIN)/pytest --matrix $(TESTS)

test-wheel: setup ## the wheel in an empty environment, and `pgsweep demo` from it (some minutes; not a part of `make test`)
	$(BIN)/pytest --timeout 1200 --demo tests/test_wheel.py

test-packaging: setup ## the container image and the systemd unit, built and started beside a PostgreSQL (as root on Debian; minutes)
	tools/debian-packages test
	tools/debian-packages test-packaging
	$(BIN)/pytest --timeout 1800 --packaging tests/test_image.py tests/test_packaging.py

fuzz: setup ## mutate what pgsweep reads, each parser for TIME (make fuzz TIME=60s TARGET=heat)
	@case "$(TARGET)" in executables|memories) ;; *) $(BIN)/python -m tests.fuzz.run --time $(TIME) $(TARGET) ;; esac
	@# The Rust parsers in a build with checks of overflow.
	@case "$(TARGET)" in ""|executables|memories) \
	PGSWEEP_FUZZ_TIME=$(TIME) cargo test --package pgsweep-probe --test fuzz --quiet -- $(TARGET) ;; esac

lint: setup ## ruff, mypy, stubtest, import-linter, rustfmt, clippy, the crates checked without the probe, for arm64 and for macOS
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=python $(BIN)/python -m mypy.stubtest pgsweep._native --ignore-disjoint-bases
	$(BIN)/lint-imports
	cargo fmt --all --check
	@# In a folder of their own: what they build has not the settings of an extension module, and setup would build it again.
	cargo clippy --workspace --all-targets --release --quiet --target-dir target/lint -- -D warnings
	cargo clippy --package pgsweep-bindings --no-default-features --release --quiet --target-dir target/lint -- -D warnings
	tools/cross check arm64
	tools/cross check macos

format: setup ## rewrite the sources in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	cargo fmt --all

bench: setup ## run benchmarks/NAME (make bench NAME=replay), or all; OPTIONS="..." are passed to it
	tools/debian-packages bench
	$(BIN)/python benchmarks/run.py $(NAME) $(if $(OPTIONS),-- $(OPTIONS))

docs: setup ## rewrite what is made from the help texts, and build the site in build/site (no dead link)
	$(BIN)/python -m tools.reference
	$(BIN)/mkdocs build --strict --quiet --site-dir build/site

screenshots: setup ## take the pictures of the guide to `serve` anew (ten minutes; look at them)
	tools/debian-packages test
	$(BIN)/python -m tools.screenshots

wheel: setup ## build wheels in dist/: for Linux with glibc 2.28 or later on x86-64 and arm64, for macOS 11 or later on arm64 and x86-64
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt ziglang
	PATH=$(abspath $(BIN)):$$PATH maturin build --release --zig --target x86_64-unknown-linux-gnu --compatibility manylinux_2_28 --out dist
	VENV=$(VENV) tools/cross wheel arm64
	VENV=$(VENV) tools/cross wheel macos
	VENV=$(VENV) tools/cross wheel macos-x86-64

test-arm64: setup ## the tests of core for arm64, emulated (some minutes; not a part of `make test`)
	tools/debian-packages test-arm64
	tools/cross test arm64

MACOS_TESTS = test_native cli/test_streams evidence/test_no_probe evidence/test_oracle_general $(addprefix sizing/test_, \
	clock curve hand inference_accesses interval_coverage model rate_caches replay sampled self_consistency sequences \
	shared_replays what_if)

test-macos: setup ## tests of the code compiled for macOS on x86-64, run on Linux (some minutes; not a part of `make test`)
	tools/debian-packages test
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt ziglang
	VENV=$(VENV) tools/cross wheel macos-x86-64
	$(CC) -O1 -Wall -Wno-unused-parameter -fPIC -shared -o .cross/system.so tools/macos/system.c
	PGSWEEP_MACOS_WHEEL=$$(ls $(CURDIR)/dist/*macosx*x86_64.whl) PGSWEEP_MACOS_SYSTEM=$(CURDIR)/.cross/system.so \
	$(BIN)/python -m pytest -p tools.macos.module $(MACOS_TESTS:%=tests/%.py)

clean: ## remove everything that was built
	rm -rf $(VENV) target python/pgsweep/_native*.so .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .servers .cross build dist
