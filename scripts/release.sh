#!/usr/bin/env bash
# Creates a release from the committed files in dist/: the sdist, the wheels built from it,
# SHA256SUMS, NOTES.md.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -n "$(git status --porcelain)" ]; then
  echo "make release: some changes are not committed; see git status" >&2
  exit 2
fi
version=$(sed -n 's/^project(dtopp VERSION \([^ ]*\).*/\1/p' CMakeLists.txt)
section() { awk -v title="## $1" '$0 == title { on = 1; next } /^## / { on = 0 } on' CHANGELOG.md; }
notes=$(section "$version")
if [ -z "$notes" ]; then
  echo "make release: CHANGELOG.md has no section $version; add it" >&2
  exit 2
fi
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH PYTHON=$PWD/.venv/bin/python

rm -rf dist build/sdist
mkdir -p dist build/sdist
"$PYTHON" -c 'import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])' dist >build/sdist.log 2>&1 ||
  { tail -n 20 build/sdist.log >&2; exit 1; }
tar -xf "dist/dtopp-$version.tar.gz" -C build/sdist
"build/sdist/dtopp-$version/scripts/wheel.sh" "$PWD/dist" >/dev/null
printf '# dtopp %s\n%s\n' "$version" "$notes" >dist/NOTES.md
cd dist
sha256sum dtopp-* >SHA256SUMS
ls -l
