#!/usr/bin/env bash
# Prepares the text that configs/lab.yaml and the studies of configs/studies/lab train on, from DTOPP_DATA (default ../shared).
# What is prepared already is left as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
text=${DTOPP_DATA:-../shared}/data/text
dtopp=build/release/bin/dtopp
tokenizer=assets/tokenizer/english-8k.tokenizer.json
"$dtopp" prepare text "$text"/train-*.jsonl.zst --tokenizer "$tokenizer" --output data/lab/train
"$dtopp" prepare text "$text/validation.jsonl.zst" --tokenizer "$tokenizer" --output data/lab/validation
