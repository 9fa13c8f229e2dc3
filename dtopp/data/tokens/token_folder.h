// Converts the facts about a folder of token files to and from JSON.
//
// manifest.json holds them when the folder is complete, progress.json before.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "dtopp/base/manifest.h"
#include "dtopp/data/files/owned_folder.h"

namespace dtopp {

inline constexpr char kTokenDataFormat[] = "dtopp token data 1";       // manifest.json
inline constexpr char kPrepareRecordFormat[] = "dtopp preparation 1";  // progress.json
inline constexpr char kIndexName[] = "tokens.idx";
inline constexpr char kTokenizerName[] = "tokenizer.json";

// The files of a folder that `dtopp prepare text` fills.
FolderKind token_folder_kind();

// A text file that is an input of the preparation.
struct TextSource {
  std::string name;  // without its folder
  uint64_t size = 0;
  std::string xxh3_128;
  uint64_t documents = 0;
  uint64_t tokens = 0;

  // Returns true if both hold the same text. The number of documents and tokens read so far is ignored.
  bool same_content(const TextSource& other) const {
    return size == other.size && xxh3_128 == other.xxh3_128;
  }
};

// The inputs that determine every byte of the tokens.
struct TextJob {
  std::string tokenizer_hash;
  int64_t vocab_size = 0;
  int64_t end_of_text = 0;
  std::vector<TextSource> sources;
};

struct TokenFacts {
  TextJob job;
  uint64_t documents = 0;
  uint64_t tokens = 0;
  int64_t max_token = -1;  // -1: no tokens
};

nlohmann::ordered_json to_json(const TokenFacts& facts);
// Reads the facts from the `about` object of the manifest at `path`. Throws DataError, naming `path` and the
// key, if a value is missing or has a wrong type.
TokenFacts read_facts(const Manifest& manifest, const std::filesystem::path& path);

}  // namespace dtopp
