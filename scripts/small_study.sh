#!/usr/bin/env bash
# Dense, top-k, top-p, DTop-p and layer-wise DTop-p on the same 4 million tokens with the same seed, then the table of
# docs/small-study.md. Needs DTOPP_DATA (default ../shared); about a quarter of an hour a model on two cores.
# Arguments are overrides for every run: small_study.sh training.seed=2 …
set -euo pipefail
cd "$(dirname "$0")/.."
text=${DTOPP_DATA:-../shared}/data/text
dtopp=build/release/bin/dtopp
tokenizer=assets/tokenizer/gpt-neox-20b.tokenizer.json

"$dtopp" prepare text "$text"/train-*.jsonl.zst --tokenizer "$tokenizer" --output data/text/train >/dev/null
"$dtopp" prepare text "$text/validation.jsonl.zst" --tokenizer "$tokenizer" --output data/text/validation >/dev/null
for method in dense top-k top-p dtop-p dtop-p-layer; do
  "$dtopp" train "configs/small-$method.yaml" "$@" >/dev/null
done
.venv/bin/python scripts/compare_runs.py runs/small-{dense,top-k,top-p,dtop-p,dtop-p-layer}
