// Owns the output folder of a preparation that can be interrupted and resumed.
//
//   .lock           held by the process that writes the folder
//   progress.json   the folder is unfinished: the progress and the files so far
//   manifest.json   the folder is complete: facts about its content and its files
//
// Both records are manifests (base/manifest.h). Under "about" they also hold the job, the inputs that
// determine every byte of the output: {"job": {<settings>, "sources": [{"name", "size", "xxh3_128"}]}, ...}.
//
// A finished folder belongs to its job. An unfinished one starts again if sources keep their names but not
// their bytes, such as after a repair, or if it holds nothing yet.
//
// Ownership: nothing in the folder is written or removed unless one of the records belongs to dtopp, or the
// folder is empty except for .lock and the temporary file of a first record whose write was interrupted.
#pragma once

#include <new>

#include <nlohmann/json_fwd.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/manifest.h"

namespace dtopp::data {
// A kind of prepared folder: token files or images.
struct FolderKind {
  std::string manifest_format;        // format of manifest.json
  std::string progress_format;        // format of progress.json
  std::vector<std::string> renamed;   // files that are written under a temporary name and renamed
  std::vector<std::string> unlisted;  // files that only an unfinished folder needs
  std::string setting_prefix{};       // of a setting's name in messages: "--" if settings are options
};

// A file or folder that is an input of the preparation.
struct InputSource {
  std::string name;  // without its folder
  uint64_t size = 0;
  std::string xxh3_128;  // of a file's bytes, or of the names, sizes and times of a folder's files
};

// Throws DataError if a preparation of this kind did not finish the folder.
void require_finished(const fs::path& folder, const FolderKind& kind);

class ResumableFolder {
 public:
  // Checks the folder without a lock, so that a finished folder on a read-only file system is accepted too.
  // Changes nothing. Throws UsageError if a file does not belong to a preparation of this kind or if another
  // job made the folder; DataError if a file of a complete folder is damaged.
  ResumableFolder(fs::path path, FolderKind kind, nlohmann::ordered_json settings,
                  const std::vector<InputSource>& sources);

  const std::optional<Manifest>& complete() const { return complete_; }
  // Locks the folder, creates it if it does not exist, checks it again and removes the leftovers of an
  // interruption. Returns the record of the progress if the folder is unfinished; nullopt if it is complete,
  // new or starts again. The caller must record() a folder without progress first, because that marks it as
  // dtopp's, and write its files from their beginning. Throws as the constructor does.
  std::optional<Manifest> begin();
  // After begin(): how the sources differ from those of the unfinished work, so that it starts again; else
  // "".
  const std::string& restart_reason() const { return restart_reason_; }
  // Replaces progress.json. It is on the device when the call returns. `about` is a JSON object.
  void record(nlohmann::ordered_json about, const ManifestFiles& files) const;
  // Writes manifest.json, which marks the folder as complete, and removes what only an unfinished folder
  // needs.
  void finish(nlohmann::ordered_json about, const ManifestFiles& files) const;

 private:
  bool has_progress() const;
  void require_ours() const;
  void refuse_other_job(const std::string& difference) const;
  // How the job of a record differs; "" if it agrees. Sources agree if their bytes do; with `names_suffice`,
  // also if their names do.
  std::string difference_from(const Manifest& record, const char* name, bool names_suffice) const;
  void find_complete();
  void remove_temporaries() const;
  void clear_up() const;
  std::string with_job(nlohmann::ordered_json about) const;

  fs::path path_;
  FolderKind kind_;
  std::string job_;  // JSON
  std::optional<Manifest> complete_;
  std::optional<DirectoryLock> lock_;
  std::string restart_reason_;
};

// Calls `read` and appends the remedy to the message of a DataError that it throws.
template <class Read>
auto with_remedy(Read read) {
  try {
    return read();
  } catch (const DataError& error) {
    throw DataError(error.what(), "; restore it, or prepare it again into a new folder");
  }
}

// Calls work(), which prepares `file` or a part of it, and returns the result. Throws ResourceError with the
// file if memory is too small.
template <class Work>
auto with_file_at_work(const std::string& file, const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    throw ResourceError(file, ": out of memory: lower --workers, or split the file");
  }
}

}  // namespace dtopp::data
