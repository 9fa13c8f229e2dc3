// Fills the output folder of a conversion.
#pragma once

#include "dtopp/base/files.h"

namespace dtopp::convert {

// Creates `folder` from the files that `fill` writes into the directory passed to it. The folder appears
// complete or not at all. Throws UsageError if `folder` exists and is not an empty folder.
template <class Fill>
void fill_folder(const fs::path& folder, const Fill& fill) {
  const fs::path target = without_trailing_slash(folder);
  const PathKind kind = path_kind(target);
  if (kind == PathKind::kFile || kind == PathKind::kOther)
    throw UsageError(target, ": not a folder; choose a path that does not exist yet");
  const bool is_there = kind == PathKind::kDirectory;
  if (is_there && !list_directory(target).empty())
    throw UsageError(target, ": is not empty; choose a folder that does not exist yet");
  if (target.has_parent_path()) make_directories(target.parent_path());
  write_directory_atomically(target, fill, /*replace=*/is_there);
}

}  // namespace dtopp::convert
