#!/usr/bin/env bash
# aarch64.sh    cross-compiles the program and the operators for aarch64 in build/aarch64, against Debian's packages
#               and PyPI's torch for that processor, and runs the operators' tests under qemu
#
# Needs mmdebstrap, g++-aarch64-linux-gnu and qemu-user-static.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/aarch64 root=$PWD/build/aarch64/root site=$PWD/build/aarch64/site-packages
torch=$(cat .venv/.dtopp-torch)
mapfile -t libraries < <(sed -n '/^packages=(/,/)$/p' scripts/setup.sh | grep -oE '[a-z0-9.-]+-dev')
libraries+=(libstdc++-12-dev libgtest-dev libgmock-dev librapidcheck-dev)

mkdir -p "$build"
# Only unpacks the packages, because their scripts would run under qemu.
[ -d "$root" ] || mmdebstrap --quiet --variant=extract --architectures=arm64 \
  --include="$(IFS=,; echo "${libraries[*]}")" bookworm "$root"
[ -d "$site" ] || .venv/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --only-binary=:all: \
  --platform manylinux_2_28_aarch64 --platform manylinux2014_aarch64 --platform manylinux_2_25_aarch64 --target "$site" \
  $(sed -n 's/^\([a-z][^ ]*==[^ ]*\).*/\1/p' "packaging/requirements-torch-$torch.txt")

export PKG_CONFIG_LIBDIR=$root/usr/lib/aarch64-linux-gnu/pkgconfig:$root/usr/share/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_LIBRARY_ARCHITECTURE=aarch64-linux-gnu \
  -DCMAKE_SYSROOT="$root" -DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=NEVER -DCMAKE_FIND_ROOT_PATH_MODE_PACKAGE=ONLY \
  -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY \
  -DCMAKE_CROSSCOMPILING_EMULATOR="qemu-aarch64-static;-L;$root" -DDTOPP_SITE_PACKAGES="$site" >"$build.log"
cmake --build "$build" --target dtopp test_ops -j "${JOBS:-$(nproc)}"
qemu-aarch64-static -L "$root" "$build/bin/dtopp" --version
OMP_NUM_THREADS=1 qemu-aarch64-static -L "$root" "$build/bin/test_ops" --gtest_filter='-*Slow.*:*Nightly.*'
