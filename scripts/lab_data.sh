#!/usr/bin/env bash
# Prepares the training text of configs/lab.yaml and configs/studies/lab from DTOPP_DATA (default ../shared).
# Leaves prepared text unchanged.
set -euo pipefail
cd "$(dirname "$0")/.."
text=${DTOPP_DATA:-../shared}/data/text
dtopp=build/release/bin/dtopp
tokenizer=assets/tokenizer/english-8k.tokenizer.json
"$dtopp" prepare text "$text"/train-*.jsonl.zst --tokenizer "$tokenizer" --output data/lab/train
"$dtopp" prepare text "$text/validation.jsonl.zst" --tokenizer "$tokenizer" --output data/lab/validation
