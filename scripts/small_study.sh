#!/usr/bin/env bash
# Dense, top-k, top-p, DTop-p and layer-wise DTop-p on the same 4 million tokens with the same seed, then the table of
# docs/small-study.md. Needs DTOPP_DATA (default ../shared); about a quarter of an hour a model on two cores.
# Arguments are overrides for every run: small_study.sh training.steps=1024 …
# SEEDS="1 2 3": each with every seed, in runs/small-<method>-seed<n>, and means with their intervals.
set -euo pipefail
cd "$(dirname "$0")/.."
text=${DTOPP_DATA:-../shared}/data/text
dtopp=build/release/bin/dtopp
tokenizer=assets/tokenizer/gpt-neox-20b.tokenizer.json
read -ra seeds <<<"${SEEDS:-}"

"$dtopp" prepare text "$text"/train-*.jsonl.zst --tokenizer "$tokenizer" --output data/text/train >/dev/null
"$dtopp" prepare text "$text/validation.jsonl.zst" --tokenizer "$tokenizer" --output data/text/validation >/dev/null
runs=()
train() { # METHOD RUN OVERRIDE…
  "$dtopp" train "configs/small-$1.yaml" "output=$2" "${@:3}" >/dev/null
  runs+=("$2")
}
for method in dense top-k top-p dtop-p dtop-p-layer; do
  case ${#seeds[@]} in
    0) train $method runs/small-$method "$@" ;;
    1) train $method runs/small-$method "training.seed=${seeds[0]}" "$@" ;;
    *) for seed in "${seeds[@]}"; do train $method "runs/small-$method-seed$seed" "training.seed=$seed" "$@"; done ;;
  esac
done
.venv/bin/python scripts/compare_runs.py "${runs[@]}"
