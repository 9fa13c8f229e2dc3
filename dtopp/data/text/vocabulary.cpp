#include "dtopp/data/text/vocabulary.h"

#include <algorithm>
#include <random>

#include <xxhash.h>

#include "dtopp/base/errors.h"
#include "dtopp/data/text/unicode.h"

namespace dtopp::data {
ByteAlphabet::ByteAlphabet() {
  bytes_.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
    characters_[byte] = printable ? static_cast<char32_t>(byte) : next++;
    bytes_[characters_[byte]] = static_cast<int16_t>(byte);
  }
}

std::string ByteAlphabet::encode(std::string_view bytes) const {
  std::string text;
  for (const char byte : bytes) append_utf8(text, characters_[static_cast<uint8_t>(byte)]);
  return text;
}

void ByteAlphabet::append_bytes(std::string& bytes, std::string_view token) const {
  const size_t before = bytes.size();
  for (size_t i = 0; i < token.size();) {
    const CodePoint c = code_point_at(token, i);
    const int byte = c.value < bytes_.size() ? bytes_[c.value] : -1;
    if (byte < 0) {
      bytes.resize(before);
      bytes += token;
      return;
    }
    bytes += static_cast<char>(byte);
    i += c.bytes;
  }
}

std::string quote(std::string_view token) {
  constexpr size_t kShown = 60;
  std::string text(1, '"');
  text += replace_invalid_utf8(token.substr(0, kShown));
  text += token.size() > kShown ? "...\"" : "\"";
  return text;
}

uint64_t make_hash_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

size_t Vocabulary::SeededHash::operator()(std::string_view text) const {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

Vocabulary::Vocabulary(const std::vector<std::pair<std::string, int32_t>>& entries, const std::string& file)
    : ids_(entries.size(), SeededHash{make_hash_seed()}) {
  for (const auto& [token, id] : entries) ids_.insert_or_assign(token, id);
  int32_t largest = -1;
  for (const auto& [token, id] : ids_) largest = std::max(largest, id);
  tokens_.resize(largest + 1, nullptr);
  for (const auto& [token, id] : ids_) {
    if (tokens_[id] != nullptr)
      throw DataError(file + ": model.vocab: " + quote(*tokens_[id]) + " and " + quote(token) +
                      " share the id " + std::to_string(id));
    tokens_[id] = &token;
  }
}

std::optional<int32_t> Vocabulary::id(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::string* Vocabulary::token(int32_t id) const {
  if (id < 0 || id >= static_cast<int64_t>(tokens_.size())) return nullptr;
  return tokens_[id];
}

}  // namespace dtopp::data
