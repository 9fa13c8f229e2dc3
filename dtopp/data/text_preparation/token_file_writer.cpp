#include "dtopp/data/text_preparation/token_file_writer.h"

#include <algorithm>
#include <limits>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/temporary.h"
#include "dtopp/data/tokens/megatron_index.h"
#include "dtopp/data/tokens/token_folder.h"

namespace dtopp::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokensName = "tokens.bin";

TokenType type_for(int64_t vocab_size) {
  return vocab_size <= (int64_t{1} << 16) ? TokenType::kUint16 : TokenType::kInt32;
}

// Returns the checksum that an earlier writer recorded for the file, or a text that no checksum equals.
std::string recorded_hash(const ManifestFiles& files, const char* name) {
  const auto found = files.find(name);
  return found == files.end() ? "not recorded" : found->second.xxh3_128;
}

}  // namespace

TokenFileWriter::TokenFileWriter(fs::path folder, int64_t vocab_size, const WrittenTokens& start)
    : folder_(std::move(folder)),
      vocab_size_(vocab_size),
      type_(type_for(vocab_size)),
      written_(start),
      tokens_(folder_ / kTokensName, start.tokens * size_of(type_), recorded_hash(start.files, kTokensName)),
      lengths_(folder_ / kLengthsName, start.documents * sizeof(int32_t),
               recorded_hash(start.files, kLengthsName)) {}

void TokenFileWriter::check_ids(std::span<const int32_t> ids) {
  if (ids.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    throw DataError("a document of " + std::to_string(ids.size()) + " tokens is too long for the format");
  if (ids.empty()) return;
  const auto [low, high] = std::minmax_element(ids.begin(), ids.end());
  if (*low < 0 || *high >= vocab_size_)
    throw DataError("token id " + std::to_string(*low < 0 ? *low : *high) + " is outside the vocabulary of " +
                    std::to_string(vocab_size_));
  written_.max_token = std::max<int64_t>(written_.max_token, *high);
}

void TokenFileWriter::append(std::span<const int32_t> ids) {
  check_ids(ids);
  if (type_ == TokenType::kUint16) {
    narrow_.assign(ids.begin(), ids.end());
    tokens_.write(std::as_bytes(std::span(narrow_)));
  } else {
    tokens_.write(std::as_bytes(ids));
  }
  const auto length = static_cast<int32_t>(ids.size());
  lengths_.write(std::as_bytes(std::span(&length, 1)));
  written_.tokens += ids.size();
  ++written_.documents;
}

WrittenTokens TokenFileWriter::sync() {
  tokens_.sync();
  lengths_.sync();
  written_.files = {{kTokensName, {tokens_.size(), tokens_.hash()}},
                    {kLengthsName, {lengths_.size(), lengths_.hash()}}};
  return written_;
}

ManifestFiles TokenFileWriter::finish() {
  sync();
  const fs::path index = folder_ / kIndexName;
  const fs::path temporary = temporary_sibling(index);
  const MappedFile lengths(lengths_.path());
  const std::string index_hash = write_megatron_index(temporary, type_, lengths);
  rename_durably(temporary, index);
  return {{kTokensName, written_.files.at(kTokensName)}, {kIndexName, {fs::file_size(index), index_hash}}};
}

}  // namespace dtopp::data
