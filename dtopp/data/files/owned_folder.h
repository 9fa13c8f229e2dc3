// A folder that one of dtopp's preparations fills: manifest.json when it is complete, progress.json before.
// Nothing in it is written or removed before a record in it (or that there is nothing else) shows that it is
// dtopp's.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtopp/base/errors.h"
#include "dtopp/base/manifest.h"

namespace dtopp {

// The record of an unfinished preparation. A folder without a manifest is not complete.
inline constexpr char kProgressName[] = "progress.json";

// A kind of prepared folder.
struct FolderKind {
  std::string manifest_format;       // of manifest.json
  std::string progress_format;       // of progress.json
  std::vector<std::string> renamed;  // files that are written beside and renamed
};

// UsageError naming what does not belong to a preparation of this kind. Changes nothing.
void require_ours(const std::filesystem::path& folder, const FolderKind& kind);

// Whether the folder holds the record of a preparation that was not finished or not cleared up.
bool has_prepare_record(const std::filesystem::path& folder, const FolderKind& kind);

// DataError where the folder has no manifest but such a record.
void require_finished(const std::filesystem::path& folder, const FolderKind& kind);

// Removes what interrupted writes left of the kind's files. Only in a folder that is locked and ours.
void remove_temporaries(const std::filesystem::path& folder, const FolderKind& kind);

// Removes progress.json. Last: as long as it is there, the next run knows that something is left to remove.
void remove_prepare_record(const std::filesystem::path& folder);

// Whether something has that name, be it a link to nothing. False for what cannot be looked at; opening it
// then says why.
bool is_there(const std::filesystem::path& path);

// Calls `read` and adds to its DataErrors what to do about them.
template <class Read>
auto with_remedy(Read read) {
  try {
    return read();
  } catch (const DataError& error) {
    throw DataError(std::string(error.what()) + "; restore it, or prepare it again into a new folder");
  }
}

}  // namespace dtopp
