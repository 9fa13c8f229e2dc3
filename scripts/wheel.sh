#!/usr/bin/env bash
# wheel.sh [FOLDER]
# Builds two wheels into FOLDER (default dist) and prints their paths: the PyTorch layer alone for every
# platform and torch, and the program with the compiled operators for the torch of this Python, which its name
# states. CUDA=1 includes libdtopp_cuda.so. The same sources and tools give the same bytes in every folder.
# PYTHON names a Python, other than .venv's, with torch and what `setup.sh wheel` installs.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
folder=${1:-dist}
raw=build/wheel-raw
# The time stamp of files in the wheel: the last commit's, or without git (in an sdist) the caller's.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 1700000000)}
# The compiler's name is that of build/release, so ccache finds the objects compiled there.
export CXX=${CXX:-c++}
export SOURCE_DATE_EPOCH CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)} PATH=$(dirname "$python"):$PATH

rm -rf $raw
mkdir -p $raw "$folder"
cuda=$([ "${CUDA:-}" = 1 ] && echo ON || echo OFF)
build() {  # FOLDER [option...]
  "$python" -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --wheel-dir "$@" . \
    >build/wheel.log 2>&1 || { tail -n 40 build/wheel.log >&2; exit 1; }
}
torch=$("$python" -c 'import importlib.metadata as m; print("torch" + ".".join(m.version("torch").split(".")[:2]))')
rm -f "$folder"/dtopp-*-any.whl "$folder"/dtopp-*+"$torch"-*.whl  # a wheel for another torch stays
DTOPP_PURE_WHEEL=1 build "$folder"
build $raw --config-settings cmake.define.DTOPP_CUDA=$cuda
# Excludes libraries that are neither Debian's nor dtopp's: torch supplies them.
"$python" -m auditwheel repair --wheel-dir "$folder" --exclude 'libtorch*' --exclude 'libc10*' --exclude 'libgomp*' \
  --exclude 'libcudart*' $raw/*.whl >>build/wheel.log 2>&1 || { tail -n 20 build/wheel.log >&2; exit 1; }
ls "$folder"/dtopp-*-any.whl "$folder"/dtopp-*+"$torch"-*.whl
