// Writes documents to tokens.bin and tokens.idx in a folder. An interrupted write can be resumed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "dtopp/base/append_file.h"
#include "dtopp/base/manifest.h"
#include "dtopp/data/tokens/token_array.h"

namespace dtopp::data {

// The state after sync(): the documents that are on the device.
struct WrittenTokens {
  uint64_t documents = 0;
  uint64_t tokens = 0;
  int64_t max_token = -1;
  ManifestFiles files;  // the files of an unfinished folder; empty before the first sync
};

class TokenFileWriter {
 public:
  // Resumes after `start`, the result of an earlier writer's sync(). Throws DataError if the data written
  // until then are missing or changed. Ids are stored as uint16 if `vocab_size` is at most 65536, else as
  // int32.
  TokenFileWriter(std::filesystem::path folder, int64_t vocab_size, const WrittenTokens& start = {});

  // Appends one document. Throws DataError if it has more than 2^31 - 1 ids or an id outside [0, vocab_size).
  void append(std::span<const int32_t> ids);
  // Syncs all appended documents to the device and returns the state for a later writer's `start`.
  WrittenTokens sync();
  // Syncs and writes tokens.idx. Returns the folder's files for its manifest.
  ManifestFiles finish();

 private:
  void check_ids(std::span<const int32_t> ids);

  std::filesystem::path folder_;
  int64_t vocab_size_;
  TokenType type_;
  WrittenTokens written_;
  AppendFile tokens_;
  AppendFile lengths_;  // one int32 per document
  std::vector<uint16_t> narrow_;
};

}  // namespace dtopp::data
