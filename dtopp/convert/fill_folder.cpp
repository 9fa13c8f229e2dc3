#include "dtopp/convert/fill_folder.h"

#include "dtopp/base/durable.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"

namespace dtopp::convert {

void fill_folder(const std::filesystem::path& folder,
                 const std::function<void(const std::filesystem::path&)>& fill) {
  const std::filesystem::path target = without_trailing_slash(folder);
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
