# make quickstart leads from a fresh machine to a trained DTop-p model. make help lists all targets.
PRESET ?= release
BUILD  := build/$(PRESET)
JOBS   ?= $(shell nproc)
PYTHON ?= $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)

.PHONY: help quickstart quickstart-images check test fuzz test-gpu gpu-report gpu-queue nightly build wheel release tag lab-data speedrun bench docs pictures format tidy clean

help:  ## print this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

quickstart:  ## install missing packages, build, prepare the sample text, train a small DTop-p model
	@scripts/quickstart.sh text $(BUILD)/bin/dtopp

quickstart-images:  ## draw pictures of digits, train a small DTop-p diffusion transformer, sample from it
	@scripts/setup.sh images
	@$(MAKE) --no-print-directory .build-dtopp
	@scripts/quickstart.sh images $(BUILD)/bin/dtopp

check:  ## check format, includes and language, run the fast tests: after every change (three minutes after a build)
	@scripts/setup.sh test
	@scripts/test.sh check $(JOBS)

test:  ## install missing packages, build, run the whole suite
	@scripts/setup.sh compile
	@scripts/test.sh test $(JOBS)

fuzz:  ## fuzz every parser of untrusted bytes, for one minute in all (tests/fuzz)
	@scripts/setup.sh test
	@python3 scripts/fuzz.py build
	@python3 scripts/fuzz.py run

test-gpu:  ## build the operators with the torch of a machine with a CUDA device, run the tests on that device
	@$(PYTHON) scripts/gpu.py test

gpu-report:  ## measure and test a CUDA device and write a page within 10 minutes (SECONDS=600; DEVICE=cpu: try it without one)
	@$(PYTHON) scripts/gpu.py report --device $(or $(DEVICE),cuda) --seconds $(or $(SECONDS),600)

gpu-queue:  ## make gpu-report within MINUTES=12, and store report.json in benchmarks/results under this commit
	@$(PYTHON) scripts/gpu.py report --results benchmarks/results --device $(or $(DEVICE),cuda) --seconds $$((60 * $(or $(MINUTES),12)))

build:  ## install missing packages, build the program (PRESET=release|debug|sanitize; CUDA=1: also for CUDA devices)
	@scripts/setup.sh $(if $(filter 1,$(CUDA)),cuda,build)
	@$(MAKE) --no-print-directory .build-dtopp

.PHONY: .build-dtopp
.build-dtopp:
	@cmake --preset $(PRESET) $(if $(CUDA),-DDTOPP_CUDA=$(CUDA)) >$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }
	@cmake --build $(BUILD) --target dtopp dtopp_ops $(if $(filter 1,$(CUDA)),dtopp_cuda) -j $(JOBS)

wheel:  ## install missing packages, build the wheels dist/dtopp-*.whl for pip (CUDA=1: also for CUDA devices)
	@$(if $(filter 1,$(CUDA)),scripts/setup.sh cuda)
	@scripts/setup.sh wheel
	@CUDA=$(CUDA) scripts/wheel.sh

release:  ## build wheels, sdist, checksums and notes in dist/ from the committed files
	@$(if $(filter 1,$(CUDA)),scripts/setup.sh cuda)
	@scripts/setup.sh wheel
	@CUDA=$(CUDA) scripts/release.sh build

tag:  ## check that a version is ready, create its tag and print what is left to do (VERSION=0.3.0)
	@scripts/release.sh tag "$(VERSION)"

nightly:  ## run every case of the suite, kernels under sanitizers, clang-tidy, a check of one definition per type
	@scripts/setup.sh test
	@scripts/setup.sh tidy
	@scripts/test.sh nightly $(JOBS)

lab-data:  ## prepare the novels of configs/lab.yaml and of configs/base, after make build
	@for part in train validation; do for vocabulary in lab:english-8k bytes:bytes bpe:english-1k; do \
	  $(BUILD)/bin/dtopp prepare text assets/text/lab-$$part.jsonl.zst --output data/$${vocabulary%:*}/$$part \
	  --tokenizer assets/tokenizer/$${vocabulary#*:}.tokenizer.json || exit; done; done

.PHONY: .quickstart-data
.quickstart-data:
	@for part in train validation; do $(BUILD)/bin/dtopp prepare text assets/text/novels-$$part.jsonl.zst \
	  --tokenizer assets/tokenizer/english-4k.tokenizer.json --output data/quickstart/$$part || exit; done

speedrun:  ## run the race of docs/speedrun.md: the quick start's model and a dense one, five seeds each
	@scripts/setup.sh build
	@$(MAKE) --no-print-directory .build-dtopp
	@$(MAKE) --no-print-directory .quickstart-data
	@$(BUILD)/bin/dtopp study configs/studies/quickstart/speedrun.yaml

bench:  ## run the benchmarks that compare with other software, one JSON line per case
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory .build-dtopp
	@scripts/bench.sh

docs:  ## install missing packages, build the site of docs/ in build/site
	@scripts/setup.sh docs
	@NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs --quiet build && echo build/site/index.html

pictures:  ## draw the SVG pictures of the documentation from benchmarks/results
	@python3 docs/images/draw_concepts.py

format:  ## run clang-format on every source file
	@scripts/lint.sh format

tidy:  ## run clang-tidy on every source file
	@scripts/setup.sh tidy
	@scripts/lint.sh tidy

clean:  ## remove build folders (the virtual environment and runs stay)
	rm -rf build
