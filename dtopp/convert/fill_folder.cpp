#include "dtopp/convert/fill_folder.h"

#include "dtopp/base/atomic_directory.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/path_kind.h"

namespace dtopp {

void fill_folder(const std::filesystem::path& folder,
                 const std::function<void(const std::filesystem::path&)>& fill) {
  const PathKind kind = path_kind(folder);
  if (kind == PathKind::kFile || kind == PathKind::kOther)
    throw UsageError(folder.string() + ": is no folder; name one that is not there yet");
  const bool is_there = kind == PathKind::kDirectory;
  if (is_there && !list_directory(folder).empty())
    throw UsageError(folder.string() + ": is not empty; name a folder that is not there yet");
  if (folder.has_parent_path()) make_directories(folder.parent_path());
  write_directory_atomically(folder, fill, /*replace=*/is_there);
}

}  // namespace dtopp
