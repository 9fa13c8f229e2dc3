#!/usr/bin/env bash
# Copies everything that a GPU machine without network and Debian packages needs to test the whole program to
# build/carry: the program and the model's test tool with their Debian libraries, and Python packages for that
# machine's Python. The operators are left out: `make test-gpu` builds them there, against that machine's
# torch.
#
# carry.sh [PYTHON_VERSION [PACKAGE…]]; by default all packages that the tests import.
set -euo pipefail
cd "$(dirname "$0")/.."
python_version=${1:-3.12}
packages=("${@:2}")
[ ${#packages[@]} -gt 0 ] || packages=(pytest numpy pyyaml safetensors)
carry=build/carry
rm -rf $carry
mkdir -p $carry/bin $carry/lib
for program in dtopp dtopp_parity; do
  strip -o $carry/bin/$program build/release/bin/$program
  ldd build/release/bin/$program | awk '$3 ~ /^\/(usr\/)?lib\// { print $3 }'
done | sort -u | grep -Ev '/lib(c|m|dl|rt|util|pthread|gcc_s|stdc\+\+)\.so' | xargs -I{} cp -L {} $carry/lib/
.venv/bin/python -m pip install -q --disable-pip-version-check --target $carry/python --python-version "$python_version" \
  --only-binary=:all: --no-compile "${packages[@]}"
find $carry/python -type d -name tests -prune -exec rm -rf {} +
find $carry/python -name '*.pyi' -delete
du -sh $carry
