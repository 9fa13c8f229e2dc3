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
untrained=$(mktemp -d)
trap 'rm -rf "$untrained"' EXIT

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

# A step with a learning rate of 0 leaves the parameters as they are initialized.
"$dtopp" train configs/quickstart.yaml training.steps=1 optimizer.lr=0 optimizer.min_lr=0 validation.every=0 \
  checkpoint.every=1 output="$untrained" >/dev/null 2>&1
for folder in "$untrained" "$run"; do
  "$dtopp" evaluate text "$folder" --text data/quickstart/validation --by-document --output "$folder/held-out.json" >/dev/null
done
"$dtopp" report "$run" --output "$run/report.html" >/dev/null
.venv/bin/python scripts/quickstart_summary.py "$run" "$untrained/held-out.json" "$dtopp"
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
  $dtopp train configs/quickstart.yaml method=dense output=runs/quickstart-dense
  $dtopp report $run runs/quickstart-dense --output runs/report.html

Time: $times; $total s in total
END
