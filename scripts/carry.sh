#!/usr/bin/env bash
# Copies everything that a GPU machine without network and Debian packages needs for `make gpu-report` to build/carry: the
# program and the model's test tool with their Debian libraries, the operators if they were built for CUDA devices, and
# Python packages for that machine's Python. That machine builds missing operators itself.
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
git describe --always --dirty --abbrev=40 --exclude='*' >$carry/commit
if [ -e build/release/lib/libdtopp_cuda.so ]; then
  mkdir $carry/ops
  for library in ops cuda; do strip -o $carry/ops/libdtopp_$library.so build/release/lib/libdtopp_$library.so; done
fi
for program in dtopp dtopp_parity; do
  strip -o $carry/bin/$program build/release/bin/$program
  ldd build/release/bin/$program | awk '$3 ~ /^\/(usr\/)?lib\// { print $3 }'
done | sort -u | grep -Ev '/lib(c|m|dl|rt|util|pthread|gcc_s|stdc\+\+)\.so' | xargs -I{} cp -L {} $carry/lib/
.venv/bin/python -m pip install -q --disable-pip-version-check --target $carry/python --python-version "$python_version" \
  --only-binary=:all: --no-compile "${packages[@]}"
find $carry/python -type d -name tests -prune -exec rm -rf {} +
find $carry/python -name '*.pyi' -delete
du -sh $carry
