#!/usr/bin/env bash
# Prepares the sample text, trains configs/quickstart.yaml and prints a summary. Run by `make quickstart`.
set -euo pipefail
cd "$(dirname "$0")/.."
dtopp=$1
tokenizer=assets/tokenizer/english-4k.tokenizer.json

for part in train validation; do
  "$dtopp" prepare text "assets/text/novels-$part.jsonl.zst" --tokenizer "$tokenizer" --output "data/quickstart/$part"
done
"$dtopp" train configs/quickstart.yaml >/dev/null
"$dtopp" report runs/quickstart --output runs/quickstart/report.html >/dev/null

.venv/bin/python scripts/quickstart_summary.py runs/quickstart
