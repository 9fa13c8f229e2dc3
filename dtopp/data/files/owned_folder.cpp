#include "dtopp/data/files/owned_folder.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "dtopp/base/files.h"
#include "dtopp/base/temporary.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& path) {
  throw UsageError(path.parent_path().string() + ": holds other files (" + path.filename().string() +
                   ", which dtopp did not write); choose an empty or new output folder");
}

}  // namespace

// A manifest or a record of dtopp shows that the folder belongs to dtopp. Without one, the folder must be
// empty except for .lock and the temporary file of a first record whose write was interrupted.
void require_ours(const fs::path& folder, const FolderKind& kind) {
  for (const auto& [name, format] :
       {std::pair(kManifestName, kind.manifest_format), std::pair(kProgressName, kind.progress_format)}) {
    if (!is_there(folder / name)) continue;
    if (begins_as_manifest(folder / name, format)) return;
    refuse(folder / name);
  }
  if (!is_there(folder)) return;
  for (const fs::path& path : list_directory(folder)) {
    const bool first_record = is_temporary_name_of(kProgressName, path.filename().string()) &&
                              begins_as_manifest(path, kind.progress_format);
    if (path.filename() != ".lock" && !first_record) refuse(path);
  }
}

bool has_prepare_record(const fs::path& folder, const FolderKind& kind) {
  return begins_as_manifest(folder / kProgressName, kind.progress_format);
}

void require_finished(const fs::path& folder, const FolderKind& kind) {
  if (!is_there(folder / kManifestName) && has_prepare_record(folder, kind))
    throw DataError(folder.string() +
                    ": its preparation was not finished; run the same `dtopp prepare` again");
}

void remove_temporaries(const fs::path& folder, const FolderKind& kind) {
  for (const std::string& name : kind.renamed) remove_abandoned(folder / name);
  for (const char* name : {kProgressName, kManifestName}) remove_abandoned(folder / name);
}

void remove_prepare_record(const fs::path& folder) {
  std::error_code gone;
  fs::remove(folder / kProgressName, gone);
  sync_directory(folder);
}

bool is_there(const fs::path& path) {
  std::error_code unused;
  return fs::exists(fs::symlink_status(path, unused));
}

}  // namespace dtopp
