#!/usr/bin/env bash
# release.sh build          creates a release from the committed files in dist/: the sdist, the wheels built from it,
#                           SHA256SUMS, NOTES.md
# release.sh tag VERSION    checks that the commit is ready to become this version, tags it vVERSION and prints what is left to do
set -euo pipefail
cd "$(dirname "$0")/.."

section() { awk -v title="## $1" '$0 == title { on = 1; next } /^## / { on = 0 } on' CHANGELOG.md; }
is_clean() { [ -z "$(git status --porcelain)" ]; }

build() {
  if ! is_clean; then
    echo "make release: some changes are not committed; see git status" >&2
    exit 2
  fi
  version=$(sed -n 's/^project(dtopp VERSION \([^ ]*\).*/\1/p' CMakeLists.txt)
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
}

failed=0
require() {  # what, what to do, command...
  if "${@:3}" >/dev/null 2>&1; then
    echo "[x] $1"
  else
    echo "[ ] $1: $2"
    failed=1
  fi
}
has_changes() { grep '^- ' <<<"$(section "$version")"; }
has_nothing_unreleased() { ! grep -qi '^## unreleased' CHANGELOG.md; }
is_new() { ! git rev-parse -q --verify "refs/tags/v$version"; }
has_address() { ! grep -q 'github.com/OWNER' README.md; }
passed() { [ "$(cat "build/tested-$1")" = "$(git rev-parse HEAD)" ]; }

tag() {
  version=$1
  [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "make tag: '$version' is no version; use make tag VERSION=1.2.3" >&2; exit 2; }
  require "no uncommitted changes" "see git status" is_clean
  require "v$version is a new tag" "choose the next version" is_new
  require "CMakeLists.txt has version $version" "set it in project(dtopp VERSION …)" grep -q "^project(dtopp VERSION $version[ )]" CMakeLists.txt
  require "CITATION.cff has version $version" "set version:" grep -qx "version: $version" CITATION.cff
  require "CHANGELOG.md has changes under ## $version" "write them" has_changes
  require "CHANGELOG.md has no section Unreleased" "move its changes to ## $version" has_nothing_unreleased
  require "README.md names the repository" "replace OWNER in the git clone line" has_address
  require "make test passed on this commit" "run it" passed test
  require "make nightly passed on this commit" "run it" passed nightly
  if [ $failed = 1 ]; then
    echo "make tag: v$version is not ready; nothing was tagged" >&2
    exit 2
  fi
  git tag --annotate "v$version" --message "dtopp $version"
  cat <<END
Created the tag v$version. Left to do:
[ ] run make gpu-report and make test-gpu on a machine with a GPU
[ ] follow README.md and docs/tutorial/first-model.md on a bare Debian
[ ] git push origin v$version, which builds and publishes the release (.github/workflows/release.yml)
[ ] install the published wheel, run the published image
END
}

case ${1:-} in
  build) build ;;
  tag) tag "${2:-}" ;;
  *) echo "usage: release.sh build | tag VERSION" >&2; exit 2 ;;
esac
