# make test      lint, types, import contracts, and the tests that a change must pass
# make test-all  all tests, the slow ones too        make coverage  the same, with line and branch coverage
# make lint      the first three of test alone       make format    put the code into its one format
# make demo      record a small program, and show its report
# make bench     what loading, recording and being watched cost     make docs      write docs/reference again
# make site      the documentation site, build/site  make pictures  take docs/images again, in a browser
# make test-programs  programs that use other libraries, bare and watched; installs .venv-programs
# make chaos     programs of all kinds with random signals, bare and watched: none may break; RUNS=16
# make jobs      distributed jobs with a planted fault each: is the rank named, and its line; ARGS=ddp2
# make test-versions  the fast tests on torch 2.6 to 2.14, lowest to newest packages; installs build/versions
# make leaks     run every program of examples/leaks, not some of them
# make gpu-test  on a machine with an NVIDIA GPU: the tests that need one, then record examples/gpu
# make gpu-once  where a GPU is there for minutes only: all that, the most valuable first, in one file; MINUTES=8
# make truth     measure what the fixes of examples save on this CPU, and write docs/truth.md
# make fuzz      search for files that reading fails on, each kind for SECONDS=600
# make nightly   what takes hours, one after the other: all tests, leaks, programs, chaos, fuzzing, benchmarks
# make wheel-trial  the wheel as a stranger has it: built twice, read, installed alone, and used
# make release   the wheel, the source archive and a list of all packages in an installation, with licences
# make pins      resolve requirements/dev.txt again  make clean     remove .venv and caches
#
# Each creates .venv with the pinned set first, and needs nothing but make and Python 3.11 or newer.

PYTHON ?= python3
VENV   ?= .venv
# Where make test-programs installs what its programs use
PROGRAMS_VENV ?= .venv-programs
# Test processes at a time: make test JOBS=8
JOBS   ?= 2
# How often to run each program of which, and what random signals come from:
# make chaos RUNS=16 SEED=1 PROGRAMS="cnn_loader maml"
RUNS   ?= 1
SEED   ?= 0
PROGRAMS ?=
# How long to search: make fuzz SECONDS=600
SECONDS ?= 60
# How many mutants of recordings to read then: make fuzz MUTANTS=10000
MUTANTS ?= 300
# More for pytest: make test ARGS="tests/readers -k gzip"; for test-versions: ARGS="--only 3.11/2.6.0"
ARGS   ?=
# A Python with torch for CUDA and what profkit needs: make gpu-test GPU_PYTHON=python3
GPU_PYTHON ?=
# How long make gpu-once may take, and the folder of its file
MINUTES ?= 8
OUT    ?= build/gpu-once
BIN    := $(VENV)/bin
# The rules of accessibility that the tests of the pages ask.
AXE_VERSION := 4.10.3
AXE    := build/axe-$(AXE_VERSION)/package/axe.min.js
WEBCOMPONENTS := build/webcomponents/package/webcomponents.min.js
# The standard's schema, as the package of SARIF's own tests has it.
SARIF  := build/sarif/package/lib/schemas/sarif-2.1.0-rtm.5.json

# Tests start hundreds of programs: each takes the bytecode that the first has written.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: release wheel-trial nightly test test-all test-programs test-versions chaos jobs coverage site gpu-test gpu-once leaks lint format demo bench truth docs pictures fuzz pins clean install

# Many tests watch a real program, which the tests beside it can delay as no user's machine would: one
# that fails runs once more, alone. What fails then is a fault.
test: lint
	$(BIN)/pytest -n $(JOBS) --dist loadfile -m 'not slow' --durations 20 $(ARGS) || \
		{ test $$? = 1 && $(BIN)/pytest --last-failed --last-failed-no-failures none --maxfail 10; }

test-all: lint
	@echo 'All tests take up to an hour on two cores.'
	PROFKIT_HYPOTHESIS=search $(BIN)/pytest -n $(JOBS) --dist loadfile $(ARGS)

# Programs that tests start are measured too; "combine" joins what each process wrote.
coverage: install
	rm -rf build/coverage
	$(BIN)/coverage run -m pytest -n $(JOBS) --dist loadfile $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet
	$(BIN)/coverage report --skip-covered --skip-empty

site: install
	$(BIN)/python docs/site.py build/site-pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Whatever fails, the rest runs too: a GPU may be at hand for an hour alone. GPU_PYTHON=python3 uses
# that Python, its torch and its packages instead of .venv, for a machine without a network.
gpu-test: PY := $(or $(GPU_PYTHON),$(BIN)/python)
gpu-test: export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
gpu-test: $(if $(GPU_PYTHON),,install)
	@$(PY) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' \
		|| { echo 'There is no CUDA GPU here that torch can use, and gpu-test needs one.'; exit 1; }
	@failed=0; \
	$(PY) -m pytest -m gpu tests/gpu tests/capture $(ARGS) || failed=1; \
	$(PY) examples/gpu/record.py || failed=1; \
	$(PY) -m pytest tests/examples/test_gpu_recorded.py || failed=1; \
	exit $$failed

gpu-once: PY := $(or $(GPU_PYTHON),$(BIN)/python)
gpu-once: export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
gpu-once: $(if $(GPU_PYTHON),,install)
	$(PY) -m examples.gpu.once --minutes $(MINUTES) --out $(OUT) $(ARGS)

# Packages beside the pinned set, in an environment of their own. torchvision is left out: PyPI has
# no build of it for the CPU, and the programs need none.
test-programs: $(PROGRAMS_VENV)/.pinned
	rm -f build/programs.json
	PROFKIT_PROGRAMS=1 $(PROGRAMS_VENV)/bin/python -m pytest tests/programs $(ARGS)

$(PROGRAMS_VENV)/.pinned: requirements/dev.txt requirements/programs.txt
	$(PYTHON) -m venv $(PROGRAMS_VENV)
	$(PROGRAMS_VENV)/bin/pip install --quiet --requirement requirements/dev.txt
	$(PROGRAMS_VENV)/bin/pip install --quiet --no-deps --requirement requirements/programs.txt
	$(PROGRAMS_VENV)/bin/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# One program at a time, unless JOBS=2 is asked for: each has as many threads as there are cores.
chaos: JOBS := 1
chaos: install
	$(BIN)/python -m tests.chaos --runs $(RUNS) --seed $(SEED) --jobs $(JOBS) $(ARGS) $(PROGRAMS)

# Half a minute for each job. ARGS="--busy 6 ddp2/moving" runs one beside six busy processes.
jobs: install
	$(BIN)/python -m tests.jobs $(ARGS)

# Installs some GB for each version: torch from PyPI has CUDA. Versions of Python that this machine
# does not have are left out.
test-versions:
	$(PYTHON) tests/versions.py $(ARGS)

leaks: install
	PROFKIT_ALL_LEAKS=1 $(BIN)/pytest -n $(JOBS) tests/examples $(ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: install
	$(BIN)/profkit demo --dir build/demo

bench: install
	$(BIN)/python -m benchmarks $(ARGS)

truth: install
	$(BIN)/python -m examples.truth.measure

docs: install
	$(BIN)/python docs/generate.py

pictures: install
	$(BIN)/python docs/pictures.py

# Four minutes, most of them for the installation of an environment with the pinned packages.
wheel-trial: install
	$(BIN)/python tests/wheel_trial.py $(ARGS)

# The same as the workflow of that name, from whose file it reads what to run.
nightly: install
	$(BIN)/python tests/nightly.py $(ARGS)

# Both archives are the same bytes each time. The list is of a new environment with the wheel alone;
# the program that writes it has an environment of its own.
release: install
	rm -rf build/release build/installed
	$(BIN)/python -m hatchling build -d build/release
	$(PYTHON) -m venv build/installed
	build/installed/bin/pip install --quiet build/release/*.whl
	test -x build/sbom/bin/cyclonedx-py || { $(PYTHON) -m venv build/sbom && \
		build/sbom/bin/pip install --quiet cyclonedx-bom==7.5.0; }
	build/sbom/bin/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml \
		--mc-type library --output-file build/release/sbom.json build/installed

fuzz: install
	$(BIN)/pip install --quiet --no-build-isolation --editable '.[fuzz]'
	$(BIN)/python fuzz/fuzz_analyze.py build/fuzz $(SECONDS)
	$(BIN)/python fuzz/fuzz_snapshot.py build/fuzz-snapshots $(SECONDS)
	$(BIN)/python fuzz/fuzz_files.py build/fuzz-files $(MUTANTS)

install: $(VENV)/.project $(AXE) $(WEBCOMPONENTS) $(SARIF)

$(VENV)/.project: $(VENV)/.pinned pyproject.toml
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# To compile all of it ahead takes a minute: what is imported is compiled then, and is a tenth of it.
$(VENV)/.pinned: requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo 'profkit needs Python 3.11 or newer; say which: make PYTHON=python3.12'; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --requirement requirements/dev.txt
	@touch $@

# npm checks what it fetches against the registry's digest. Without it those tests say why they skip.
$(AXE):
	@mkdir -p $(dir $(AXE))..
	@if command -v npm > /dev/null; then \
		cd build/axe-$(AXE_VERSION) \
			&& npm pack --silent axe-core@$(AXE_VERSION) > /dev/null && tar -xzf axe-core-*.tgz \
			|| echo 'axe-core cannot be fetched: the tests that need it skip'; \
	else echo 'there is no npm: the tests that need axe-core skip'; fi

$(SARIF):
	@mkdir -p build/sarif
	@if command -v npm > /dev/null; then \
		cd build/sarif && npm pack --silent @microsoft/jest-sarif@1.0.0-beta.0 > /dev/null \
			&& tar -xzf microsoft-jest-sarif-*.tgz \
			|| echo "SARIF's schema cannot be fetched: the test that needs it skips"; \
	else echo "there is no npm: the test that needs SARIF's schema skips"; fi

# What the trace view of torch-tb-profiler loads from the internet; in the tests it comes from here.
$(WEBCOMPONENTS):
	@mkdir -p build/webcomponents
	@if command -v npm > /dev/null; then \
		cd build/webcomponents && npm pack --silent webcomponents.js@0.7.24 > /dev/null \
			&& tar -xzf webcomponents.js-*.tgz \
			|| echo 'webcomponents.js cannot be fetched: the test that needs it skips'; \
	else echo 'there is no npm: the test that needs webcomponents.js skips'; fi

# What torch itself needs of CUDA is left out: its wheel pins that, and a CPU build needs none.
pins: install
	$(BIN)/pip install --quiet uv
	echo 'torch==2.13.0' | $(BIN)/uv pip compile pyproject.toml --extra dev --universal \
		--python-version 3.11 --constraint - --no-header --no-annotate --quiet \
		$(foreach package,$(FROM_TORCH),--no-emit-package $(package)) \
		--output-file requirements/dev.txt
	grep -v '^ *#' requirements/dev.txt > requirements/dev.new
	mv requirements/dev.new requirements/dev.txt
	$(BIN)/uv pip compile pyproject.toml --extra programs --universal --python-version 3.11 \
		--constraint requirements/dev.txt --no-header --no-annotate --quiet \
		$(foreach package,$(FROM_TORCH) torch torchvision setuptools,--no-emit-package $(package)) \
		--output-file requirements/programs.txt

FROM_TORCH := triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-cupti \
	nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile \
	nvidia-curand nvidia-cusolver nvidia-cusparse nvidia-cusparselt-cu13 nvidia-nccl-cu13 \
	nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx

clean:
	rm -rf $(VENV) $(PROGRAMS_VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
