// Writes documents to tokens.bin and tokens.idx in a folder, so that an interrupted writer can go on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "dtopp/base/append_file.h"
#include "dtopp/base/manifest.h"
#include "dtopp/data/tokens/token_array.h"

namespace dtopp {

// What a writer has put on the device.
struct WrittenTokens {
  uint64_t documents = 0;
  uint64_t tokens = 0;
  int64_t max_token = -1;
  ManifestFiles files;  // what an unfinished folder holds; empty before the first sync
};

class TokenFileWriter {
 public:
  // Ids are uint16 where `vocab_size` of them fit, else int32. Goes on after what `start`, an earlier
  // writer's sync(), had written. DataError when that is not there unchanged.
  TokenFileWriter(std::filesystem::path folder, int64_t vocab_size, const WrittenTokens& start = {});

  // One document, at most 2^31 - 1 ids. DataError for an id outside [0, vocab_size).
  void append(std::span<const int32_t> ids);
  // Returns once everything appended is on the device.
  WrittenTokens sync();
  // Syncs and writes tokens.idx. The folder's files, for its manifest.
  ManifestFiles finish();
  // Removes what only an unfinished folder needs.
  static void remove_leftovers(const std::filesystem::path& folder);

 private:
  void check_ids(std::span<const int32_t> ids);

  std::filesystem::path folder_;
  int64_t vocab_size_;
  TokenType type_;
  WrittenTokens written_;
  AppendFile tokens_;
  AppendFile lengths_;  // int32 of each document
  std::vector<uint16_t> narrow_;
};

}  // namespace dtopp
