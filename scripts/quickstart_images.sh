#!/usr/bin/env bash
# Draws pictures of digits, trains configs/quickstart-images.yaml on them, samples from the model and prints a
# summary. Run by `make quickstart-images`.
set -euo pipefail
cd "$(dirname "$0")/.."
dtopp=$1
data=data/quickstart-images
run=runs/quickstart-images

mkdir -p "$data"
draw() {  # PART COUNT SEED
  [ -f "$data/$1.tar" ] || .venv/bin/python scripts/draw_glyphs.py "$data/$1.tar" --count "$2" --seed "$3"
  "$dtopp" prepare images "$data/$1.tar" --output "$data/$1"
}
draw train 10000 1
draw validation 1000 2
"$dtopp" train configs/quickstart-images.yaml >/dev/null
"$dtopp" sample "$run" --count 200 --steps 20 --guidance 2 --output "$run/samples.npz" >/dev/null
"$dtopp" report "$run" --output "$run/report.html" >/dev/null

.venv/bin/python scripts/quickstart_images_summary.py "$data" "$run"
