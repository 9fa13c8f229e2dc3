#!/usr/bin/env bash
# test.sh [JOBS [check]]
#
# Runs the whole suite: lint, unit tests, Python references, and again under sanitizers the tests of the folders
# that read untrusted bytes. With `check` (make check) it stops after the unit tests. With DTOPP_FULL=1 (make
# nightly) it runs every case, and the kernels under sanitizers too. If nvcc is installed, libdtopp_cuda.so is
# compiled, linked and loaded; its kernels run on a GPU machine (make test-gpu).
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${1:-$(nproc)}
export DTOPP_DATA=${DTOPP_DATA:-../shared}
# Spinning threads starve each other if cores are shared with other work.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
[ -d "$DTOPP_DATA/data" ] || echo "DTOPP_DATA=$DTOPP_DATA holds no data/; tests on the full data are skipped" >&2

configure() {
  cmake --preset "$@" >"build/$1.log" 2>&1 || { cat "build/$1.log"; exit 1; }
}

scripts/lint.sh check

if PATH=$PATH:/usr/local/cuda/bin command -v nvcc >/dev/null; then
  configure release -DDTOPP_CUDA=ON
else
  echo "nvcc is not installed; the CUDA library is neither compiled nor linked" >&2
  configure release
fi
cmake --build build/release -j "$jobs"
ctest --test-dir build/release --output-on-failure -j "$jobs"
[ "${2:-}" != check ] || exit 0
# Each test file runs in one process, which prepares the file's shared fixtures once.
.venv/bin/python -m pytest -q -n "$jobs" --dist loadfile --durations 20 tests/python

# AddressSanitizer and UndefinedBehaviorSanitizer.
folders=(base config checkpoint data tasks)
[ "${DTOPP_FULL:-}" != 1 ] || folders+=(launch runs study report ops ops_cuda)
configure sanitize
cmake --build build/sanitize -j "$jobs" --target "${folders[@]/#/test_}"
ctest --test-dir build/sanitize --output-on-failure -j "$jobs" -R "^($(IFS='|'; echo "${folders[*]}"))$"
