#include "dtopp/data/tokens/token_folder.h"

#include <nlohmann/json.hpp>

#include "dtopp/base/json_fields.h"

namespace dtopp::data {

using nlohmann::ordered_json;

FolderKind token_folder_kind() {
  return {kTokenDataFormat, kPrepareRecordFormat, {kIndexName, kTokenizerName}, {kLengthsName}};
}

ordered_json to_json(uint64_t documents, uint64_t tokens, int64_t max_token) {
  ordered_json about = {{"documents", documents}, {"tokens", tokens}};
  if (max_token >= 0) about["max_token"] = max_token;
  return about;
}

TokenFacts read_facts(const Manifest& manifest, const std::filesystem::path& path) {
  const JsonFields about(manifest.about, path.string()), job = about.object("job");
  TokenFacts facts{job.text("tokenizer_hash"), job.integer("end_of_text", 0), about.count("documents"),
                   about.count("tokens")};
  if (facts.tokens > 0) facts.max_token = about.integer("max_token", 0);
  return facts;
}

}  // namespace dtopp::data
