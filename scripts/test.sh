#!/usr/bin/env bash
# test.sh check|test|nightly [JOBS]
#
# check:    what to run after every change: lint and the fast tests, three minutes after a build
# test:     every test; every parser of untrusted bytes under sanitizers, with its corpus and 10 seconds of fuzzing
# nightly:  every case of every test, also with the oldest transformers, all kinds of programs under sanitizers, an hour
#           of fuzzing, clang-tidy, one definition per type
#
# At the end stand the slowest tests and the skipped ones with what they need. If nvcc is installed,
# libdtopp_cuda.so is compiled, linked and loaded; its kernels run on a GPU machine (make test-gpu).
set -euo pipefail
cd "$(dirname "$0")/.."
tier=$1 jobs=${2:-$(nproc)}
times=$PWD/build/test-times/$tier
export DTOPP_DATA=${DTOPP_DATA:-../shared}
# Spinning threads starve each other if cores are shared with other work.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1}
# The tests' processes import the same modules, which Python compiles once if it may keep them.
unset PYTHONDONTWRITEBYTECODE
# Property tests draw the same cases each time, and new ones every night.
[ "$tier" = nightly ] || export RC_PARAMS=${RC_PARAMS:-seed=1}

configure() {  # preset, options...
  cmake --preset "$@" >"build/$1.log" 2>&1 || { cat "build/$1.log"; exit 1; }
}

build() {  # target
  local cuda=OFF
  if PATH=$PATH:/usr/local/cuda/bin command -v nvcc >/dev/null; then cuda=ON; fi
  configure release -DDTOPP_CUDA=$cuda
  cmake --build build/release -j "$jobs" --target "$1"
}

# Many tests wait for a disk, a timeout or another process: four at a time keep two cores busy. The tier check is
# timed test by test, so each has a core.
at_once=$jobs
[ "$tier" = check ] || at_once=$((2 * jobs))

# Suites whose names end in Slow or Nightly belong to these tiers.
cpp() {  # GTEST_FILTER, preset, options of ctest...
  GTEST_FILTER=$1 GTEST_OUTPUT=xml:$times/$2/ ctest --test-dir "build/$2" --output-on-failure -j "$at_once" "${@:3}"
}

# Each test file runs in one process, which prepares the file's shared fixtures once.
python() {  # options of pytest...
  .venv/bin/python -m pytest -q -n "$at_once" --dist loadfile --no-loadscope-reorder --junitxml "$times/test_python.xml" "$@"
}

# The tests that use transformers, with the oldest release of pyproject.toml and the versions that it needs.
python_with_oldest_transformers() {
  local release folder
  release=$(sed -n 's/.*"transformers>=\([0-9.]*\).*/\1/p' pyproject.toml)
  folder=$PWD/build/transformers-$release
  [ -d "$folder" ] || .venv/bin/python -m pip install -q --no-compile --target "$folder" "transformers==$release"
  PYTHONPATH=$folder python --junitxml "$times/test_oldest_transformers.xml" tests/python/convert \
    tests/python/package/test_{checkpoints,huggingface}.py tests/python/generate/test_precision.py tests/python/serve/test_own_moe.py
}

# AddressSanitizer and UndefinedBehaviorSanitizer.
sanitize() {  # GTEST_FILTER, folders...
  local filter=$1
  shift
  configure sanitize
  cmake --build build/sanitize -j "$jobs" --target "${@/#/test_}"
  cpp "$filter" sanitize -R "^($(IFS='|'; echo "$*"))$"
}

tier_check() {
  scripts/lint.sh check
  build fast_tests
  cpp '-*Slow.*:*Nightly.*' release -L fast
  python -m fast
}

tier_test() {
  # Python packages arrive on one core, and the fuzz targets do not need them.
  scripts/setup.sh test &
  python3 scripts/fuzz.py build --quick || { wait; exit 1; }
  wait $!
  scripts/lint.sh check &
  build all
  wait $!
  # Collecting the tests compiles the modules that they import, which the workers of pytest would otherwise all do at
  # once. The workers collect again, and report errors.
  { .venv/bin/python -m pytest -q --collect-only >/dev/null || true; } &
  cpp '-*Nightly.*' release
  wait $!
  python
  python3 scripts/fuzz.py run --seconds 10 --seed 1  # an unchanged tree passes again
}

tier_nightly() {
  # A single fast test may take 5 seconds and all of them three minutes.
  build fast_tests
  SECONDS=0
  scripts/test.sh check "$jobs"
  [ $SECONDS -le 180 ] || { echo "make check took $SECONDS seconds after a build, not 180" >&2; exit 1; }
  python3 scripts/test_times.py build/test-times/check 5

  export DTOPP_FULL=1
  build all
  cpp '*' release
  python
  python_with_oldest_transformers
  sanitize '*' base config checkpoint data tasks launch runs study report ops ops_cuda
  cmake --build build/sanitize -j "$jobs" --target fuzz_targets
  cpp '*' sanitize -R '^corpus$'
  python3 scripts/fuzz.py build
  python3 scripts/fuzz.py run --seconds 3600
  scripts/lint.sh tidy
  configure odr
  cmake --build build/odr -j "$jobs" --target dtopp
}

tested=build/tested-$tier  # the commit that passed, for scripts/release.sh tag
rm -rf "$times" "$tested"
mkdir -p "$times"
commit=$(git rev-parse HEAD 2>/dev/null || true)
"tier_$tier"
python3 scripts/test_times.py "$times"
if [ -z "$(git status --porcelain 2>&1)" ]; then echo "$commit" >"$tested"; fi
