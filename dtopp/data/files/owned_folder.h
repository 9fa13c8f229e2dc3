// Checks that the output folder of `dtopp prepare` belongs to dtopp before anything in it changes.
//
// A complete folder holds manifest.json; an unfinished one holds progress.json. Nothing in the folder is
// written or removed unless one of these records belongs to dtopp or the folder is empty.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtopp/base/errors.h"
#include "dtopp/base/manifest.h"

namespace dtopp {

// The record of an unfinished preparation.
inline constexpr char kProgressName[] = "progress.json";

// A kind of prepared folder: token files or images.
struct FolderKind {
  std::string manifest_format;       // format of manifest.json
  std::string progress_format;       // format of progress.json
  std::vector<std::string> renamed;  // files that are written under a temporary name and renamed
};

// Throws UsageError if the folder holds a file that does not belong to a preparation of this kind. Changes
// nothing.
void require_ours(const std::filesystem::path& folder, const FolderKind& kind);

// Returns true if the folder holds the record of a preparation that did not finish or whose temporary files
// were not removed.
bool has_prepare_record(const std::filesystem::path& folder, const FolderKind& kind);

// Throws DataError if the folder has such a record but no manifest.
void require_finished(const std::filesystem::path& folder, const FolderKind& kind);

// Removes the temporary files that interrupted writes left. Preconditions: this process has locked the
// folder, and require_ours() has accepted it.
void remove_temporaries(const std::filesystem::path& folder, const FolderKind& kind);

// Removes progress.json. Call it last: as long as the file exists, the next run removes the leftovers.
void remove_prepare_record(const std::filesystem::path& folder);

// Returns true if the path exists, even as a broken link. Returns false also if its status cannot be read;
// opening it then reports the reason.
bool is_there(const std::filesystem::path& path);

// Calls `read` and appends the remedy to the message of a DataError that it throws.
template <class Read>
auto with_remedy(Read read) {
  try {
    return read();
  } catch (const DataError& error) {
    throw DataError(std::string(error.what()) + "; restore it, or prepare it again into a new folder");
  }
}

}  // namespace dtopp
