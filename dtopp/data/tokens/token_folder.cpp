#include "dtopp/data/tokens/token_folder.h"

#include <nlohmann/json.hpp>

#include "dtopp/base/json_fields.h"

namespace dtopp {

using nlohmann::ordered_json;

FolderKind token_folder_kind() {
  return {kTokenDataFormat, kPrepareRecordFormat, {kIndexName, kTokenizerName}};
}

ordered_json to_json(const TokenFacts& facts) {
  ordered_json sources = ordered_json::array();
  for (const TextSource& source : facts.job.sources) {
    sources.push_back({{"name", source.name},
                       {"size", source.size},
                       {"xxh3_128", source.xxh3_128},
                       {"documents", source.documents},
                       {"tokens", source.tokens}});
  }
  ordered_json about = {{"tokenizer_hash", facts.job.tokenizer_hash},
                        {"vocab_size", facts.job.vocab_size},
                        {"end_of_text", facts.job.end_of_text},
                        {"documents", facts.documents},
                        {"tokens", facts.tokens}};
  if (facts.max_token >= 0) about["max_token"] = facts.max_token;
  about["sources"] = std::move(sources);
  return about;
}

TokenFacts read_facts(const Manifest& manifest, const std::filesystem::path& path) {
  const JsonFields about(manifest.about, path.string());
  TokenFacts facts;
  facts.job = {about.text("tokenizer_hash"),
               static_cast<int64_t>(about.count("vocab_size")),
               static_cast<int64_t>(about.count("end_of_text")),
               {}};
  for (const JsonFields& source : about.objects("sources"))
    facts.job.sources.push_back({source.text("name"), source.count("size"), source.text("xxh3_128"),
                                 source.count("documents"), source.count("tokens")});
  facts.documents = about.count("documents");
  facts.tokens = about.count("tokens");
  if (facts.tokens > 0) facts.max_token = static_cast<int64_t>(about.count("max_token"));
  return facts;
}

}  // namespace dtopp
