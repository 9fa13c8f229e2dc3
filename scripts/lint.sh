#!/usr/bin/env bash
# lint.sh format         rewrites the files in place
# lint.sh check          checks format, includes, and the language of comments and commit subjects
# lint.sh tidy [FILE…]   runs clang-tidy
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH  # clang-format of tests/python/requirements.txt: each version formats otherwise
mapfile -t sources < <(git ls-files --cached --others --exclude-standard -- '*.cpp' '*.h' '*.cu')
case ${1:-check} in
  format) clang-format -i "${sources[@]}" ;;
  check)
    printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -n 50 clang-format --dry-run -Werror
    for script in scripts/*.sh .ci/run; do
      [ -x "$script" ] || { echo "$script is not executable" >&2; exit 1; }
    done
    python3 scripts/check_includes.py
    python3 scripts/check_language.py
    python3 scripts/check_language.py --commits ;;
  tidy)
    # A separate build folder, configured but never built, in which every file is compiled separately.
    cuda=$(grep -qs 'DTOPP_CUDA:BOOL=ON' build/release/CMakeCache.txt && echo ON || echo OFF)
    cmake --preset release -B build/tidy -DDTOPP_UNITY=OFF -DDTOPP_CUDA="$cuda" >build/tidy.log 2>&1 || { cat build/tidy.log; exit 1; }
    shift
    files=("$@")
    # CUDA files are compiled only if the toolkit is installed.
    known() { grep -qF "$PWD/$1\"" build/tidy/compile_commands.json; }
    [ ${#files[@]} -gt 0 ] || mapfile -t files < <(git ls-files -- 'dtopp/*.cpp' 'cli/*.cpp' | while read -r file; do ! known "$file" || echo "$file"; done)
    # Removes gcc's own options, including its precompiled header, which clang does not accept.
    sed -i -E 's/-fpch-preprocess//g; s/-Wno-(restrict|stringop-overflow)//g; s/--param=ggc[^ ]*//g; s/-Wno-subobject-linkage//g; s/-Winvalid-pch//g; s/-include [^ ]*cmake_pch\.hxx//g' \
      build/tidy/compile_commands.json
    printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 1 clang-tidy -p build/tidy --quiet ;;
  *) echo "usage: lint.sh format|check|tidy [FILE…]" >&2; exit 2 ;;
esac
