#include "dtopp/train/run_directory.h"

#include "dtopp/base/atomic_directory.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/path_kind.h"
#include "dtopp/runs/run_directory.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;

// The outermost missing directory of path and its parents; empty if path exists.
fs::path first_missing(fs::path path) {
  fs::path missing;
  std::error_code error;
  for (; !path.empty() && !fs::exists(path, error); path = path.parent_path()) missing = path;
  return missing;
}

}  // namespace

RunDirectory::RunDirectory(fs::path path)
    : path_(std::move(path)), first_created_(first_missing(without_trailing_slash(path_))) {
  try {
    std::error_code error;
    make_directories(without_trailing_slash(path_));
    lock_is_new_ = !fs::exists(path_ / ".lock", error);
    lock_.emplace(path_);
    if (path_kind(checkpoints_of(path_)) == PathKind::kDirectory) put_back_replaced(checkpoints_of(path_));
  } catch (...) {
    lock_is_new_ = false;  // another process holds it
    remove_created();
    throw;
  }
}

RunDirectory::~RunDirectory() {
  if (!kept_) remove_created();
}

void RunDirectory::remove_created() const {
  std::error_code ignored;  // a directory that is not empty stays
  // Remove the lock file while it is locked: a waiting process then finds it locked or missing.
  if (lock_is_new_) fs::remove(path_ / ".lock", ignored);
  if (first_created_.empty()) return;
  for (fs::path path = without_trailing_slash(path_);; path = path.parent_path()) {
    fs::remove(path, ignored);
    if (path == first_created_) return;
  }
}

void refuse_other_configuration(const RunConfig& config) {
  const auto there = config_of(config.output);
  if (!there) return;
  std::string keys;
  for (const std::string& key : differing_keys(*there, config)) {
    if (affects_result(key)) keys += (keys.empty() ? "" : ", ") + key;
  }
  if (keys.empty()) return;
  throw UsageError(config.output + " holds a run of another configuration (different: " + keys +
                   "); choose another output, or the same configuration to resume");
}

}  // namespace dtopp
