// Converts the facts about a folder of token files to and from JSON.
//
// manifest.json holds them when the folder is complete, progress.json before.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "dtopp/base/manifest.h"
#include "dtopp/data/files/resumable_folder.h"

namespace dtopp::data {

inline constexpr char kTokenDataFormat[] = "dtopp token data 2";       // manifest.json
inline constexpr char kPrepareRecordFormat[] = "dtopp preparation 2";  // progress.json
inline constexpr char kIndexName[] = "tokens.idx";
inline constexpr char kLengthsName[] = "progress.lengths";
inline constexpr char kTokenizerName[] = "tokenizer.json";

// The files of a folder that `dtopp prepare text` fills.
FolderKind token_folder_kind();

struct TokenFacts {
  std::string tokenizer_hash;
  int64_t end_of_text = 0;
  uint64_t documents = 0;
  uint64_t tokens = 0;
  int64_t max_token = -1;  // -1: no tokens
};

// Returns the facts except for the tokenizer's, which are in the folder's job. `max_token` is -1 without
// tokens.
nlohmann::ordered_json to_json(uint64_t documents, uint64_t tokens, int64_t max_token);
// Reads the facts from the `about` object of the manifest at `path`. Throws DataError, naming `path` and the
// key, if a value is missing or has a wrong type.
TokenFacts read_facts(const Manifest& manifest, const std::filesystem::path& path);

}  // namespace dtopp::data
