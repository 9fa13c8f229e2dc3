#include "dtopp/data/text_preparation/prepare_folder.h"

#include <string>
#include <utility>

#include "dtopp/base/errors.h"
#include "dtopp/data/text_preparation/token_file_writer.h"
#include "dtopp/data/tokens/token_file.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;

void require_same_job(const fs::path& folder, const TextJob& there, const TextJob& now) {
  const std::string difference = job_difference(there, now);
  if (!difference.empty())
    throw UsageError(folder.string() + ": " + difference + "; choose another output folder");
}

}  // namespace

std::optional<TokenFacts> find_complete(const fs::path& folder, const TextJob& job) {
  require_ours(folder, token_folder_kind());
  if (!is_there(folder / kManifestName)) return std::nullopt;
  TokenFacts facts = with_remedy([&] {
    const Manifest manifest = read_manifest(folder, kTokenDataFormat);
    verify_content(folder, manifest.files);
    return read_facts(manifest, folder / kManifestName);
  });
  require_same_job(folder, facts.job, job);
  return facts;
}

PrepareRecord begin_folder(const fs::path& folder, TextJob job) {
  require_ours(folder, token_folder_kind());  // again, now under the lock: no other process writes there
  if (auto record = read_prepare_record(folder)) {
    require_same_job(folder, record->job, job);
    remove_temporaries(folder, token_folder_kind());
    return *std::move(record);
  }
  remove_temporaries(folder, token_folder_kind());
  PrepareRecord record{std::move(job), {}, {}};
  write_prepare_record(folder, record);  // first, because it marks the folder as dtopp's
  return record;
}

void clear_up(const fs::path& folder) {
  if (!has_prepare_record(folder, token_folder_kind())) return;
  try {
    read_prepare_record(folder);
  } catch (const DataError&) {
    return;  // a damaged record may stay: the folder is complete without it
  }
  remove_temporaries(folder, token_folder_kind());
  TokenFileWriter::remove_leftovers(folder);
  remove_prepare_record(folder);
}

}  // namespace dtopp
