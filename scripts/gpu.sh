#!/usr/bin/env bash
# Tests or measures on a machine with a CUDA device, a torch that supports it, g++ and nvcc. Needs no network.
#
# gpu.sh bench: builds the operators and measures them (benchmarks/gpu_ops.py). If the program exists, it also trains
#               (benchmarks/gpu_training.py, which receives further arguments).
# gpu.sh test:  builds the operators and runs their tests on the device. If the program exists, it also runs the tests of the
#               model and of training.
#
# scripts/carry.sh brings the program along. PYTHON names a Python other than python3.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=$1
python=${PYTHON:-python3}
fail() { echo "make $mode-gpu: $*" >&2; exit 1; }
export PATH=$PATH:/usr/local/cuda/bin PYTHONPATH=$PWD/build/carry/python${PYTHONPATH:+:$PYTHONPATH}
"$python" -c 'import torch' 2>/dev/null || fail "$python has no torch; set PYTHON to a Python that has it"
"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null ||
  fail "torch finds no CUDA device; compare the list of nvidia-smi"
for tool in g++ nvcc; do command -v $tool >/dev/null || fail "$tool is not installed"; done
[ "$mode" = bench ] || "$python" -c 'import numpy, pytest' 2>/dev/null ||
  fail "$python has no numpy and pytest; install them, or copy build/carry from a machine with network (scripts/carry.sh)"

site=$("$python" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])')
scripts/build_ops.sh "$site" build/gpu
export DTOPP_OPS=$PWD/build/gpu/lib/libdtopp_ops.so
results=build/gpu/bench.jsonl  # output of gpu.sh bench, line by line
if [ "$mode" = bench ]; then
  "$python" benchmarks/gpu_ops.py | tee $results
else
  status=0
  "$python" scripts/run_cases.py tests/python/ops/test_{ops,cuda,dispatch,differential}.py || status=1
  DTOPP_MOE_KERNELS=fused "$python" scripts/run_cases.py tests/python/ops/test_{ops,cuda,differential}.py -- -k cuda || status=1
fi

program=build/carry/bin/dtopp
[ -x $program ] || program=build/release/bin/dtopp
[ -x $program ] ||
  { echo "make $mode-gpu: the program is missing; the model and training are skipped" >&2; exit "${status:-0}"; }
# The program's own rpaths are those of the build machine. The operators built here come before those built
# there.
export LD_LIBRARY_PATH=$PWD/build/gpu/lib:$site/torch/lib:$site/nvidia/cu13/lib:$PWD/build/carry/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export DTOPP_BINARY=$PWD/$program DTOPP_DEVICE=cuda
if [ "$mode" = bench ]; then
  "$program" devices --check
  "$python" -c 'import numpy, yaml' 2>/dev/null ||
    { echo "make bench-gpu: $python has no numpy and PyYAML; training is skipped" >&2; exit 0; }
  # Together with the build, the operators and the start of a run, this takes less than 10 minutes.
  "$python" benchmarks/gpu_training.py --steps 200 --seconds 240 "${@:2}" | tee -a $results
  exit
fi
"$python" scripts/run_cases.py tests/python/plan/test_device{,s}.py tests/python/generate tests/python/evaluate/test_{text,diffusion,activations}.py \
  tests/python/train/test_{model_parity,training_parity,controller_replay,diffusion_parity,diffusion_training,documents,probes}.py \
  tests/python/train/test_{resume,recompute,background_saves,replay}.py || status=1
DTOPP_MOE_KERNELS=fused "$python" scripts/run_cases.py tests/python/train/test_{model_parity,training_parity}.py || status=1
exit $status
