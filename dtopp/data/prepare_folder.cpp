#include "dtopp/data/prepare_folder.h"

#include <string>
#include <system_error>
#include <utility>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/temporary.h"
#include "dtopp/data/token_file.h"
#include "dtopp/data/token_file_writer.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& path) {
  throw UsageError(path.parent_path().string() + ": holds other files (" + path.filename().string() +
                   ", which dtopp did not write); choose an empty or new output folder");
}

// A manifest or a record of dtopp's shows whose the folder is. Without one it must be empty, save for a first
// record that was never finished.
void require_ours(const fs::path& folder) {
  for (const auto& [name, format] :
       {std::pair(kManifestName, kTokenDataFormat), std::pair(kProgressName, kProgressFormat)}) {
    if (!is_there(folder / name)) continue;
    if (begins_as_manifest(folder / name, format)) return;
    refuse(folder / name);
  }
  if (!is_there(folder)) return;
  for (const fs::path& path : list_directory(folder)) {
    const bool first_record = is_temporary_name_of(kProgressName, path.filename().string()) &&
                              begins_as_manifest(path, kProgressFormat);
    if (path.filename() != ".lock" && !first_record) refuse(path);
  }
}

void require_same_job(const fs::path& folder, const TextJob& there, const TextJob& now) {
  const std::string difference = job_difference(there, now);
  if (!difference.empty())
    throw UsageError(folder.string() + ": " + difference + "; choose another output folder");
}

void remove_temporaries(const fs::path& folder) {
  for (const char* name : {kProgressName, kIndexName, kTokenizerName, kManifestName})
    remove_abandoned(folder / name);
}

}  // namespace

std::optional<TokenFacts> find_complete(const fs::path& folder, const TextJob& job) {
  require_ours(folder);
  if (!is_there(folder / kManifestName)) return std::nullopt;
  TokenFacts facts = with_remedy([&] {
    const Manifest manifest = read_manifest(folder, kTokenDataFormat);
    verify_content(folder, manifest.files);
    return read_facts(manifest, folder / kManifestName);
  });
  require_same_job(folder, facts.job, job);
  return facts;
}

bool has_prepare_record(const fs::path& folder) {
  return begins_as_manifest(folder / kProgressName, kProgressFormat);
}

PrepareRecord begin_folder(const fs::path& folder, TextJob job) {
  require_ours(folder);  // once more: now nobody else writes there
  if (auto record = read_prepare_record(folder)) {
    require_same_job(folder, record->job, job);
    remove_temporaries(folder);
    return *std::move(record);
  }
  remove_temporaries(folder);
  PrepareRecord record{std::move(job), {}, {}};
  write_prepare_record(folder, record);  // before anything else, so that the folder is known as ours
  return record;
}

void clear_up(const fs::path& folder) {
  if (!has_prepare_record(folder)) return;
  try {
    read_prepare_record(folder);
  } catch (const DataError&) {
    return;  // damaged: it may stay, the folder is complete without it
  }
  remove_temporaries(folder);
  TokenFileWriter::remove_leftovers(folder);
  // Last: as long as it is there, the next run knows that something is left to remove.
  std::error_code gone;
  fs::remove(folder / kProgressName, gone);
  sync_directory(folder);
}

}  // namespace dtopp
