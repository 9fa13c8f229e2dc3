#include "dtopp/data/text_preparation/prepare_record.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "dtopp/base/files.h"
#include "dtopp/base/json.h"
#include "dtopp/base/json_fields.h"
#include "dtopp/data/files/owned_folder.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;

std::string describe(const TextSource& source) {
  return source.name + " (" + std::to_string(source.size) + " bytes, xxh3-128 " +
         source.xxh3_128.substr(0, 8) + ")";
}

}  // namespace

void write_prepare_record(const fs::path& folder, const PrepareRecord& progress) {
  nlohmann::ordered_json about = to_json(progress.facts());
  about["position"] = {{"source", progress.position.source},
                       {"offset", progress.position.text.offset},
                       {"line", progress.position.text.line},
                       {"input_bytes", progress.position.input_bytes}};
  write_file_atomically(folder / kProgressName,
                        format_manifest({kPrepareRecordFormat, dump_json(about), progress.written.files}));
}

std::optional<PrepareRecord> read_prepare_record(const fs::path& folder) {
  const fs::path path = folder / kProgressName;
  if (!begins_as_manifest(path, kPrepareRecordFormat)) return std::nullopt;
  const Manifest manifest =
      with_remedy([&] { return read_manifest(folder, kPrepareRecordFormat, kProgressName); });
  TokenFacts facts = read_facts(manifest, path);
  const JsonFields position = JsonFields(manifest.about, path.string()).object("position");
  const CorpusPosition reached{position.count("source"),
                               {position.count("offset"), position.count("line")},
                               position.count("input_bytes")};
  if (reached.source > facts.job.sources.size()) position.fail("source", "lies beyond the list of sources");
  return PrepareRecord{
      std::move(facts.job), reached, {facts.documents, facts.tokens, facts.max_token, manifest.files}};
}

std::string job_difference(const TextJob& there, const TextJob& now) {
  if (there.tokenizer_hash != now.tokenizer_hash) return "was made with another tokenizer";
  if (there.end_of_text != now.end_of_text || there.vocab_size != now.vocab_size)
    return "was made with another vocabulary size or end-of-text id of this tokenizer";
  for (size_t i = 0; i < std::min(there.sources.size(), now.sources.size()); ++i) {
    if (!there.sources[i].same_content(now.sources[i]))
      return "was made from other text: file " + std::to_string(i + 1) + " was " +
             describe(there.sources[i]) + ", now " + describe(now.sources[i]);
  }
  if (there.sources.size() != now.sources.size())
    return "was made from " + std::to_string(there.sources.size()) + " files of text, not " +
           std::to_string(now.sources.size());
  return "";
}

}  // namespace dtopp
