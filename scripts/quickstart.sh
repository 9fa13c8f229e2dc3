#!/usr/bin/env bash
# quickstart.sh text PROGRAM      installs, builds, trains configs/quickstart.yaml, and shows what the model has learned and
#                                 how long each phase took (`make quickstart`)
# quickstart.sh images PROGRAM    draws pictures of digits, trains configs/quickstart-images.yaml on them, samples from the
#                                 model and prints a summary (`make quickstart-images`)
#
# PROGRAM is the one that `make .build-dtopp` builds.
set -euo pipefail
cd "$(dirname "$0")/.."
dtopp=$2
opening="This time they had a third oddity. Previously the unknown man had walked,"  # of a held-out book

times=""
phase_ends() {
  times+="${times:+, }$1 $SECONDS s"
  total=$((${total:-0} + SECONDS))
  SECONDS=0
}

text() {
  local run=runs/quickstart show=()
  SECONDS=0
  scripts/setup.sh build
  phase_ends install
  make --no-print-directory .build-dtopp
  phase_ends build
  make --no-print-directory .quickstart-data
  phase_ends prepare
  "$dtopp" train configs/quickstart.yaml >/dev/null
  phase_ends train

  "$dtopp" evaluate text "$run" --text data/quickstart/validation --by-document --output "$run/held-out.json" >/dev/null
  "$dtopp" report "$run" --output "$run/report.html" >/dev/null
  .venv/bin/python scripts/quickstart_summary.py text "$run" "$dtopp"
  echo
  echo "A held-out book, continued by the model (seed 1, first draw):"
  echo "$opening"
  [ ! -t 1 ] || show=(--show-experts)  # in color
  "$dtopp" generate "$run" --prompt "$opening" --max-tokens 80 --seed 1 "${show[@]}"
  phase_ends evaluate

  cat <<END

Next steps:
  $dtopp generate $run --interactive       # type a sentence, then /target 1 and /target 8
  $dtopp evaluate text $run --text data/quickstart/validation --sweep-target 1,2,4,8
  $dtopp train configs/quickstart.yaml method=dense output=runs/dense
  $dtopp report $run runs/dense --output runs/report.html

Time: $times; $total s in total
END
}

draw() {  # FOLDER PART COUNT SEED
  [ -f "$1/$2.tar" ] || .venv/bin/python scripts/glyphs.py draw "$1/$2.tar" --count "$3" --seed "$4"
  "$dtopp" prepare images "$1/$2.tar" --output "$1/$2"
}

images() {
  local data=data/quickstart-images run=runs/quickstart-images
  mkdir -p "$data"
  draw "$data" train 10000 1
  draw "$data" validation 1000 2
  "$dtopp" train configs/quickstart-images.yaml >/dev/null
  "$dtopp" sample "$run" --count 200 --steps 20 --guidance 2 --output "$run/samples.npz" >/dev/null
  "$dtopp" report "$run" --output "$run/report.html" >/dev/null
  .venv/bin/python scripts/quickstart_summary.py images "$run" "$data"
}

"$1"
