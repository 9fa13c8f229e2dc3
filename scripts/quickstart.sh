#!/usr/bin/env bash
# Installs, builds, trains configs/quickstart.yaml, and shows what the model has learned and how long each phase
# took. Run by `make quickstart`.
#
# quickstart.sh PROGRAM    the program that `make .build-dtopp` builds
set -euo pipefail
cd "$(dirname "$0")/.."
dtopp=$1
run=runs/quickstart
opening="This time they had a third oddity. Previously the unknown man had walked,"  # of a held-out book

times=""
SECONDS=0
phase_ends() {
  times+="${times:+, }$1 $SECONDS s"
  total=$((${total:-0} + SECONDS))
  SECONDS=0
}

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
.venv/bin/python scripts/quickstart_summary.py "$run" "$dtopp"
echo
echo "A held-out book, continued by the model (seed 1, first draw):"
echo "$opening"
show=()
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
