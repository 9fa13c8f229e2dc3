#!/usr/bin/env bash
# build_ops.sh SITE_PACKAGES BUILD
# Builds libdtopp_ops.so and libdtopp_cuda.so in BUILD/lib against the torch in SITE_PACKAGES. Needs g++ and
# nvcc. Uses CMake if it is installed; without it, kernels can still be tested.
set -euo pipefail
cd "$(dirname "$0")/.."
site=$1 build=$2
jobs=$(nproc)
mkdir -p "$build/lib" "$build/objects"

if command -v cmake >/dev/null; then
  cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DDTOPP_OPS_ONLY=ON -DDTOPP_CUDA=ON -DDTOPP_SITE_PACKAGES="$site" \
    >"$build.log" 2>&1 || { cat "$build.log" >&2; exit 1; }
  exec cmake --build "$build" -j "$jobs"
fi

nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
cuda=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
export host="g++ -c -std=c++20 -O3 -DNDEBUG -fPIC -fopenmp -I. -isystem $site/torch/include \
  -isystem $site/torch/include/torch/csrc/api/include -isystem $site/nvidia/nccl/include -isystem $cuda/include \
  -isystem $site/nvidia/cu13/include"
export hopper="$nvcc -c -std=c++20 -O3 -DNDEBUG -Xcompiler=-fPIC -I. -gencode=arch=compute_90a,code=sm_90a"
export device="$hopper -gencode=arch=compute_80,code=[sm_80,compute_80]"
export build
compile() {  # skips objects newer than every source and header
  local object=$build/objects/$(basename "$1").o
  [ -n "$(find dtopp -newer "$object" -print -quit 2>/dev/null || echo none)" ] || return 0
  case $1 in *_wgmma_cuda.cu) $hopper "$1" -o "$object.new" ;; *.cu) $device "$1" -o "$object.new" ;; *) $host "$1" -o "$object.new" ;; esac
  mv "$object.new" "$object"
}
export -f compile
{ find dtopp -name '*_cuda.cpp' -o -name '*_cuda.cu'; find dtopp/ops -name '*.cpp' ! -name '*_cuda.cpp'; } |
  xargs -P "$jobs" -I{} bash -ec 'compile {}'

shopt -s nullglob extglob
link=(g++ -shared -Wl,--no-as-needed -Wl,--allow-shlib-undefined -L"$site/torch/lib" "-Wl,-rpath,\$ORIGIN:$site/torch/lib")
"${link[@]}" -o "$build/lib/libdtopp_ops.so" "$build"/objects/!(*_cuda.*).o -ltorch_cpu -lc10 "$site"/torch/lib/libgomp.so.1
runtime=("$site"/nvidia/cu13/lib/libcudart.so.13 "$cuda"/lib64/libcudart.so.13)
for library in "${runtime[@]}"; do [ ! -e "$library" ] || break; done
"${link[@]}" "-Wl,-rpath,$(dirname "$library")" -o "$build/lib/libdtopp_cuda.so" "$build"/objects/*_cuda.*.o \
  -L"$build/lib" -ldtopp_ops -ltorch_cpu -lc10 -ltorch_cuda -lc10_cuda "$library"
