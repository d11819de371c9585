# Every target makes .venv and installs what it needs when that has not happened yet.
PYTHON ?= python3
MODEL ?= resnet50
BIN := .venv/bin
INSTALLED := .venv/.installed
LIBRARIES := .venv-models
# Bytecode is kept, wherever it usually is not: tests start hundreds of processes, each of which would compile anew.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

# Tests that try more where Hypothesis's profile asks for it, which tests/properties defines.
WITH_PROPERTIES := tests/properties tests/fx/*/test_*_properties.py tests/fx/passes/test_pipeline_origins.py \
	tests/pytest_fx/generation tests/pytest_fx/search/test_formula_passes.py

.PHONY: verify test thorough pythons torches wheels machines lint bench tables stale-tables catalogue verdicts museum looseness candidates mutants models engines gpu accuracy properties attack \
	interrupts interrupted-runs fuzz fuzz-atheris docs

verify: $(INSTALLED)  ## capture MODEL, check every pass on it against eager, time it, print the table
	$(BIN)/python -m pytest --noconftest --fx-model $(MODEL) $(ARGS)

test: $(INSTALLED)  ## the whole test suite, on all cores with one thread each: several wait for each other
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal $(ARGS)

thorough: $(INSTALLED)  ## the tests that `make test` leaves out because they take seconds each; random programs are new ones
	$(BIN)/python -m pytest -m thorough --hypothesis-profile=default --numprocesses auto --dist worksteal $(ARGS)

pythons: $(INSTALLED)  ## the tests under each interpreter that is found; ARGS="-- --cuda" where torch has no CPU build
	$(PIP) nox
	$(BIN)/python -m nox -s pythons $(ARGS)

torches: $(INSTALLED)  ## the tests with each version of torch that there is for PYTHON; ARGS as above
	$(PIP) nox
	$(BIN)/python -m nox -s torches --force-python $(PYTHON) $(ARGS)

wheels: $(INSTALLED)  ## the wheel outside of the checkout, with each interpreter and each torch; ARGS as above
	$(PIP) build nox
	$(BIN)/python -m nox -s wheels wheels_by_torch $(ARGS)

gpu: $(INSTALLED)  ## all that needs a CUDA device, in 12 minutes; a later run goes on where it was; ARGS="--seconds 300"
	PYTHONPATH=.:tests $(BIN)/python tests/gpu/run.py $(ARGS)

lint: $(INSTALLED)  ## style, types, direction of imports, prose; all five run, so that one report shows everything
	@status=0; \
	for check in 'ruff check .' 'ruff format --check .' pyright lint-imports 'python tests/prose.py'; do \
		echo "$(BIN)/$$check"; $(BIN)/$$check || status=1; \
	done; \
	exit $$status

bench: $(INSTALLED)  ## speed and memory of the library itself, as ratios in one run
	$(BIN)/python -m benchmarks $(ARGS)

tables: $(INSTALLED)  ## measure the rows of the evaluation whose code has changed, and no others; ARGS="--fx-tables=fusion -k batch" for some
	$(BIN)/python -m pytest --fx-tables $(ARGS)

stale-tables: $(INSTALLED)  ## list these rows, with the time that they took
	$(BIN)/python -m pytest_fx.tables

catalogue: $(INSTALLED)  ## try the harness on every wrong and right pass of the catalogue; writes results/catalogue.md
	PYTHONPATH=tests $(BIN)/python -m catalogue $(ARGS)

verdicts: $(INSTALLED)  ## try the harness on what was once judged wrongly; writes results/verdicts.md
	PYTHONPATH=tests:tests/properties $(BIN)/python -m verdicts

museum: $(INSTALLED)  ## run the reproducers of faults of torch and of engines; writes results/faults.md; ARGS="NAME" for one
	OMP_NUM_THREADS=1 PYTHONPATH=.:tests $(BIN)/python -m museum $(ARGS)

looseness: $(INSTALLED)  ## how far outputs may be off before the harness says so; writes results/looseness.md
	PYTHONPATH=.:tests $(BIN)/python tests/properties/looseness.py

candidates: $(INSTALLED)  ## judge kernels that cheat, and right ones; writes results/candidates.md
	OMP_NUM_THREADS=1 PYTHONPATH=.:tests $(BIN)/python tests/properties/candidates.py

mutants: $(INSTALLED)  ## how many mutants of our own passes check_pass kills; writes results/mutants.md; ARGS="NAME" for one
	OMP_NUM_THREADS=1 PYTHONPATH=.:tests $(BIN)/python tests/properties/mutants.py $(ARGS)

docs: $(INSTALLED)  ## the pages, and a reference from docstrings, as a site with search, in build/site; fails for a link that leads nowhere
	$(PIP) mkdocs-material mkdocstrings-python
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet $(ARGS)

models: $(LIBRARIES)/.installed  ## capture models of torchvision, timm and transformers; writes results/models.md; ARGS=--suite checks more
	OMP_NUM_THREADS=1 PYTHONPATH=tests/properties $(BIN)/python -m models $(ARGS)

engines: $(LIBRARIES)/.installed  ## lower sixteen architectures to each backend; writes results/engines.md; ARGS=--times measures speed
	OMP_NUM_THREADS=1 PYTHONPATH=.:tests/properties $(BIN)/python -m engines $(ARGS)

accuracy: $(INSTALLED)  ## what 8 bits cost models trained on real data; writes results/accuracy.md, fails if too much
	$(BIN)/python -m pytest --fx-tables=accuracy $(ARGS)
	$(BIN)/python -m pytest tests/pytest_fx/tables/test_accuracy_table.py -k committed

machines: $(INSTALLED)  ## 8 bits, and the tests of kernels, with the instructions of other processors; writes results/machines.md
	$(BIN)/python tests/fx/quantize/machines.py

properties: $(INSTALLED)  ## every pass, and capture itself, on thousands of random programs
	$(BIN)/python -m pytest $(WITH_PROPERTIES) -m "" --hypothesis-profile=properties --numprocesses auto --dist worksteal $(ARGS)

attack: interrupts interrupted-runs fuzz  ## interrupts, interrupted runs, damaged and costly files, wild arguments, bad calls
	FX_WILD_TRIES=40 FX_BAD_CALLS=all $(BIN)/python -m pytest -m "" tests/fuzz/test_wild_calls.py tests/fx/serialization/test_load_costs.py tests/fx/test_bad_calls.py tests/fx/test_calls_by_signature.py

interrupts: $(INSTALLED)  ## raise 4,000 exceptions at random moments of captures and passes, and at each step of one; nothing may be left
	$(BIN)/python tests/fx/interrupted.py $(ARGS)
	FX_EVERY_STEP=1 $(BIN)/python -m pytest -m "" tests/fx/test_interrupts.py tests/pytest_fx/harness/test_process.py \
		-k "interrupted_twice or at_any_step or at_any_moment"

interrupted-runs: $(INSTALLED)  ## kill runs, fill their disk, lock their folder, start two at once: nothing measured is lost
	$(BIN)/python tests/fuzz/interrupted_runs.py $(ARGS)

fuzz: $(INSTALLED)  ## damage saved programs 100,000 times, our other files 10,000 times; each is refused or read
	$(BIN)/python -m pytest tests/fuzz -m "" --hypothesis-profile=fuzz $(ARGS)

fuzz-atheris: $(INSTALLED)  ## the same by coverage: atheris looks for files that the loader does not refuse well
	$(PIP) atheris
	$(BIN)/python tests/fuzz/fuzz_load.py -runs=100000 $(ARGS)

# torch comes first and pinned, so that no later line can pull in another build of it; the build backend is
# installed by hand because an isolated build would download its own.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) setuptools torch
	$(PIP) --no-build-isolation --editable '.[dev]'
	touch $@

# Beside .venv, and without what they say they depend on: torch above all, of which they would bring another build.
$(LIBRARIES)/.installed: constraints.txt $(INSTALLED)
	$(PIP) --upgrade --target $(LIBRARIES) --no-deps torchvision timm transformers
	$(PIP) --upgrade --target $(LIBRARIES) huggingface_hub tokenizers regex pyyaml tqdm
	touch $@
