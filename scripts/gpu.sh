#!/usr/bin/env bash
# On a machine with a CUDA device, a torch that knows it, g++ and nvcc: builds the operators. gpu.sh bench: measures them
# (benchmarks/gpu_ops.py). gpu.sh test: runs their tests on the device. Then, where the program is there (scripts/carry.sh
# takes it along), bench trains with it (benchmarks/gpu_training.py), and test runs the tests of the model and of training.
# No network needed. Further arguments of gpu.sh bench are gpu_training.py's. PYTHON names a Python other than python3.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=$1
python=${PYTHON:-python3}
fail() { echo "make $mode-gpu: $*" >&2; exit 1; }
export PATH=$PATH:/usr/local/cuda/bin PYTHONPATH=$PWD/build/carry/python${PYTHONPATH:+:$PYTHONPATH}
"$python" -c 'import torch' 2>/dev/null || fail "$python has no torch: name a Python that has one, PYTHON=…"
"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null ||
  fail "there is no CUDA device that torch can use (nvidia-smi lists those the driver knows)"
for tool in g++ nvcc; do command -v $tool >/dev/null || fail "$tool is not installed"; done
[ "$mode" = bench ] || "$python" -c 'import numpy, pytest' 2>/dev/null ||
  fail "$python has no numpy and pytest: install them, or bring build/carry from a machine with network (scripts/carry.sh)"

site=$("$python" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])')
scripts/build_ops.sh "$site" build/gpu
export DTOPP_OPS=$PWD/build/gpu/lib/libdtopp_ops.so
results=build/gpu/bench.jsonl  # of gpu.sh bench, line by line as they come
if [ "$mode" = bench ]; then
  "$python" benchmarks/gpu_ops.py | tee $results
else
  status=0
  "$python" scripts/run_cases.py tests/python/test_ops{,_cuda,_dispatch,_differential}.py || status=1
  DTOPP_MOE_PRODUCTS=fused "$python" scripts/run_cases.py tests/python/test_ops{,_cuda,_differential}.py -- -k cuda || status=1
fi

program=build/carry/bin/dtopp
[ -x $program ] || program=build/release/bin/dtopp
[ -x $program ] ||
  { echo "make $mode-gpu: no program is here: the model and training are left out" >&2; exit "${status:-0}"; }
# Its own rpaths are those of the machine it was built on; the operators built here come before the ones built there.
export LD_LIBRARY_PATH=$PWD/build/gpu/lib:$site/torch/lib:$site/nvidia/cu13/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export DTOPP_BINARY=$PWD/$program DTOPP_DEVICE=cuda
if [ "$mode" = bench ]; then
  "$program" devices --check
  "$python" -c 'import numpy, yaml' 2>/dev/null ||
    { echo "make bench-gpu: $python has no numpy and PyYAML: training is left out" >&2; exit 0; }
  # With the build, the operators and the start of a run, less than 10 minutes.
  "$python" benchmarks/gpu_training.py --steps 200 --seconds 240 "${@:2}" | tee -a $results
  exit
fi
"$python" scripts/run_cases.py tests/python/test_device.py::test_auto_takes_the_cuda_device tests/python/test_devices.py \
  tests/python/test_{model_parity,training_parity,controller_replay}.py || status=1
DTOPP_MOE_PRODUCTS=fused "$python" scripts/run_cases.py tests/python/test_{model_parity,training_parity}.py || status=1
exit $status
