// Tokens and their ids, both ways, and the byte-level alphabet that tokens are written in.
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

namespace dtopp {

// GPT-2 writes each byte as a printable character: itself where it is one, else one from U+0100 on.
class ByteAlphabet {
 public:
  ByteAlphabet();
  char32_t character(uint8_t byte) const { return characters_[byte]; }
  std::string encode(std::string_view bytes) const;
  // The bytes a token stands for; a token with any other character stands for its own UTF-8.
  void append_bytes(std::string& bytes, std::string_view token) const;

 private:
  std::array<char32_t, 256> characters_;
  std::array<int16_t, 0x144> bytes_;  // of each character, or -1
};

class Vocabulary {
 public:
  // Where a token is listed twice, the last id counts. DataError where two tokens share an id.
  Vocabulary(const std::vector<std::pair<std::string, int32_t>>& entries, const std::string& file);
  Vocabulary(Vocabulary&&) = default;

  std::optional<int32_t> id(std::string_view token) const;
  // Null when there is no such id.
  const std::string* token(int32_t id) const;
  size_t size() const { return ids_.size(); }
  int64_t largest_id() const { return static_cast<int64_t>(tokens_.size()) - 1; }

 private:
  // Keyed anew for each load, so that no file can be made whose tokens all collide.
  struct SeededHash {
    using is_transparent = void;
    uint64_t seed;
    size_t operator()(std::string_view text) const;
  };
  std::unordered_map<std::string, int32_t, SeededHash, std::equal_to<>> ids_;
  std::vector<const std::string*> tokens_;  // by id, into ids_
};

// A token as an error message shows it: in quotes, cut where it is long.
std::string quote(std::string_view token);

// A random number for hash tables that untrusted files fill.
uint64_t make_hash_seed();

}  // namespace dtopp
