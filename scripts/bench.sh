#!/usr/bin/env bash
# Runs the benchmarks that compare with other software; each prints one JSON line per case
# (benchmarks/README.md). Arguments are passed to training_step.py.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --build build/release --target tokenizer_benchmark image_benchmark >/dev/null
.venv/bin/python benchmarks/tokenizer.py
.venv/bin/python benchmarks/prepare_images.py
.venv/bin/python benchmarks/moe_ffn.py
.venv/bin/python benchmarks/moe_layers.py --quick
.venv/bin/python benchmarks/routing_methods.py
.venv/bin/python benchmarks/route.py
.venv/bin/python benchmarks/linear_cross_entropy.py
.venv/bin/python benchmarks/training_step.py "$@"
