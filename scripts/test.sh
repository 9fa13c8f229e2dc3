#!/usr/bin/env bash
# The whole suite: format, include direction, unit tests, the same under sanitizers, Python oracles, the command line.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${1:-$(nproc)}
export DTOPP_DATA=${DTOPP_DATA:-../shared}
[ -d "$DTOPP_DATA/data" ] || echo "DTOPP_DATA=$DTOPP_DATA holds no data/: tests on the full data skip" >&2

scripts/lint.sh check
cmake --preset release >build/release.log 2>&1 || { cat build/release.log; exit 1; }
cmake --build build/release -j "$jobs"
ctest --test-dir build/release --output-on-failure
.venv/bin/python -m pytest -q tests/python
