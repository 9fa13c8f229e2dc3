#!/usr/bin/env bash
# wheel.sh [FOLDER]: builds the wheel into FOLDER (default dist) and prints its path. CUDA=1: with libdtopp_cuda.so.
# The same sources and tools give the same bytes in every folder. PYTHON names a Python with torch and what
# scripts/requirements-wheel.txt lists, other than .venv's.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
folder=${1:-dist}
raw=build/wheel-raw
# What files in the wheel say of when they were made: where there is no git (an sdist), what the caller says.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 1700000000)}
# The compiler's name as build/release has it: ccache then knows what was compiled there.
export CXX=${CXX:-c++}
export SOURCE_DATE_EPOCH CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)} PATH=$(dirname "$python"):$PATH

rm -rf $raw
mkdir -p $raw "$folder"
cuda=$([ "${CUDA:-}" = 1 ] && echo ON || echo OFF)
"$python" -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --wheel-dir $raw \
  --config-settings cmake.define.DTOPP_CUDA=$cuda . >build/wheel.log 2>&1 || { tail -n 40 build/wheel.log >&2; exit 1; }
# What is not Debian's nor ours stays outside: torch brings it.
rm -f "$folder"/dtopp-*.whl
"$python" -m auditwheel repair --wheel-dir "$folder" --exclude 'libtorch*' --exclude 'libc10*' --exclude 'libgomp*' \
  --exclude 'libcudart*' $raw/*.whl >>build/wheel.log 2>&1 || { tail -n 20 build/wheel.log >&2; exit 1; }
ls "$folder"/dtopp-*.whl
