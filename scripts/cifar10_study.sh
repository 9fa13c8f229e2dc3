#!/usr/bin/env bash
# Dense, top-k, top-p, DTop-p and layer-wise DTop-p diffusion transformers on CIFAR-10, the same images, noise and seed
# for all: trained, measured on held-out images, sampled from, judged, and the tables of docs/image-study.md. Needs
# DTOPP_DATA (default ../shared) and scripts/setup.sh judge. Resumes after a stop; what is finished is not done
# again.
# Arguments are overrides for every run. From the environment:
#   METHODS  which of dense top-k top-p dtop-p dtop-p-layerwise (all)
#   SEEDS    of training ("1"); "1 2 3": intervals over them
#   STEP     what is looked at: 400, 800, 1200 or 1600 (1600); training stops there and continues from there another time
#   SAMPLES  pictures of each model that are judged (2000)
#   RUNS     folder of the runs (runs)
#   RESULTS  folder of what is measured (runs/cifar10-study)
set -euo pipefail
cd "$(dirname "$0")/.."
images=${DTOPP_DATA:-../shared}/data/images
dtopp=build/release/bin/dtopp
read -ra methods <<<"${METHODS:-dense top-k top-p dtop-p dtop-p-layerwise}"
read -ra seeds <<<"${SEEDS:-1}"
runs=${RUNS:-runs}
last=1600
step=${STEP:-$last}
count=${SAMPLES:-2000}
results=${RESULTS:-runs/cifar10-study}/step-$(printf %08d "$step")
mkdir -p "$results"

for part in train validation; do
  "$dtopp" prepare images "$images/cifar10-$part.tar.zst" --output "data/cifar10/$part" >/dev/null
done

stop_at_checkpoint() { # PROCESS CHECKPOINT
  while kill -0 "$1" 2>/dev/null; do
    if [ -d "$2" ]; then kill -TERM "$1" 2>/dev/null || true; break; fi
    sleep 1
  done
  wait "$1" || [ -d "$2" ]
}

train() { # METHOD SEED RUN CHECKPOINT OVERRIDE…
  local training=("$dtopp" train configs/cifar10.yaml "method=${1//-/_}" "output=$3" "training.seed=$2" "training.steps=$last"
    optimizer.warmup_steps=200 validation.every=400 checkpoint.every=400 checkpoint.keep=0
    diffusion.samples_every=400 "diffusion.sample_classes=[0,1,2,3,4,5,6,7,8,9]")
  case $1 in dtop-p*) training+=(routing.ki=1.5) ;; esac
  training+=("${@:5}")
  if [ "$step" = "$last" ]; then
    "${training[@]}" >/dev/null
  else
    "${training[@]}" >/dev/null &
    # bash lets what runs in the background ignore Ctrl-C
    trap "kill -TERM $! 2>/dev/null; wait $!; exit 75" INT TERM
    stop_at_checkpoint $! "$4"
    trap - INT TERM
  fi
}

measure() { # CHECKPOINT RESULT
  [ -e "$2.json" ] && [ -e "$2.safetensors" ] ||
    "$dtopp" evaluate images "$1" --images data/cifar10/validation --dump "$2.safetensors" \
      --output "$2.json" >/dev/null
  [ -e "$2.npz" ] || "$dtopp" sample "$1" --count "$count" --steps 25 --guidance 2 --output "$2.npz" >/dev/null
}

folders=()
files=()
for seed in "${seeds[@]}"; do
  for method in "${methods[@]}"; do
    name=cifar10-$method-seed$seed
    checkpoint=$runs/$name/checkpoints/step-$(printf %08d "$step")
    [ -d "$checkpoint" ] || train "$method" "$seed" "$runs/$name" "$checkpoint" "$@"
    measure "$checkpoint" "$results/$name"
    folders+=("$runs/$name")
    files+=("$results/$name.npz")
  done
done

judged=$results/judged-$(printf '%s\n' "${files[@]}" | sha256sum | cut -c1-8).json
if [ ! -e "$judged" ]; then
  .venv/bin/python scripts/judge_samples.py "${files[@]}" --train data/cifar10/train \
    --held-out data/cifar10/validation --json >"$judged.part"
  mv "$judged.part" "$judged"
fi
.venv/bin/python scripts/compare_images.py "${folders[@]}" --step "$step" --results "$results" --judged "$judged" \
  --grids "$results/grids.png" | tee "$results/tables.md"
