#!/usr/bin/env bash
# tag.sh VERSION: checks that the commit is ready to become this version, tags it vVERSION and prints what is left to do.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:-}
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "make tag: '$version' is no version; use make tag VERSION=1.2.3" >&2; exit 2; }

failed=0
require() {  # what, what to do, command...
  if "${@:3}" >/dev/null 2>&1; then
    echo "[x] $1"
  else
    echo "[ ] $1: $2"
    failed=1
  fi
}
is_clean() { [ -z "$(git status --porcelain)" ]; }
has_changes() { awk -v title="## $version" '$0 == title { on = 1; next } /^## / { on = 0 } on && /^- / { found = 1 } END { exit !found }' CHANGELOG.md; }
has_nothing_unreleased() { ! grep -qi '^## unreleased' CHANGELOG.md; }
is_new() { ! git rev-parse -q --verify "refs/tags/v$version"; }
has_address() { ! grep -q 'github.com/OWNER' README.md; }
passed() { [ "$(cat "build/tested-$1")" = "$(git rev-parse HEAD)" ]; }

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
