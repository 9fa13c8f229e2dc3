// Maps tokens to ids and back, and bytes to the characters in which tokens are written.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace dtopp::data {
// GPT-2's byte-level alphabet: a printable byte is written as itself, any other byte as a character from
// U+0100 on.
class ByteAlphabet {
 public:
  ByteAlphabet();
  char32_t character(uint8_t byte) const { return characters_[byte]; }
  std::string encode(std::string_view bytes) const;
  // Appends the bytes of a token. A token with a character outside the alphabet contributes its own UTF-8.
  void append_bytes(std::string& bytes, std::string_view token) const;

 private:
  std::array<char32_t, 256> characters_;
  std::array<int16_t, 0x144> bytes_;  // byte per character, or -1
};

class Vocabulary {
 public:
  // If a token occurs twice, its last id is kept. Throws DataError, naming `file`, if two tokens share an id.
  Vocabulary(const std::vector<std::pair<std::string, int32_t>>& entries, const std::string& file);
  Vocabulary(Vocabulary&&) = default;

  std::optional<int32_t> id(std::string_view token) const;
  // Returns the token with this id; null if the id does not exist.
  const std::string* token(int32_t id) const;
  size_t size() const { return ids_.size(); }
  int64_t largest_id() const { return static_cast<int64_t>(tokens_.size()) - 1; }

 private:
  // Has a new random seed per load, so that no file can be crafted whose tokens all collide.
  struct SeededHash {
    using is_transparent = void;
    uint64_t seed;
    size_t operator()(std::string_view text) const;
  };
  std::unordered_map<std::string, int32_t, SeededHash, std::equal_to<>> ids_;
  std::vector<const std::string*> tokens_;  // by id; points to keys of ids_
};

// Quotes a token for an error message and truncates it after 60 bytes.
std::string quote(std::string_view token);

// Returns a random seed for hash tables that untrusted files fill.
uint64_t make_hash_seed();

}  // namespace dtopp::data
