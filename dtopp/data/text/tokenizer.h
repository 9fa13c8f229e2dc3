// Encodes and decodes text with the BPE of a Hugging Face tokenizer.json.
//
// It supports byte-level BPE: an optional NFC normalizer, Split and Digits pre-tokenizers before ByteLevel,
// the BPE model and added tokens. It supports also SentencePiece's BPE, as Llama 2 and Mixtral have it:
// spaces are written as marks (tokenizer_json.h), and unknown characters as bytes. encode() returns the ids
// that Hugging Face `tokenizers` returns with add_special_tokens=False: a post-processor that adds a token at
// the beginning is ignored.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtopp/data/text/tokenizer_json.h"
#include "dtopp/data/text/unicode.h"

namespace dtopp::data {

// A byte range of a text: an added token, or the text between two of them (id -1).
struct TextSegment {
  int32_t id;
  size_t begin;
  size_t end;
};

// Splits text at added tokens, as Hugging Face `tokenizers` does. The leftmost match wins, and the longest of
// those that begin there. Matches never overlap. The flags single_word, lstrip and rstrip apply to each match
// afterwards.
class AddedTokenMatcher {
 public:
  struct Pattern {
    std::string text;  // not empty
    int32_t id;
    bool single_word;
    bool lstrip;
    bool rstrip;
  };

  // If several patterns have the same text, the one with the lowest id is kept.
  explicit AddedTokenMatcher(std::vector<Pattern> patterns);

  // Appends the segments of `text` (valid UTF-8); no segment is empty. A token inside the spaces that an
  // earlier rstrip covers is still reported, so segments may overlap.
  void split(std::string_view text, std::vector<TextSegment>& segments) const;

 private:
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };

  const Pattern* longest_at(std::string_view text, size_t offset) const;
  bool may_start(std::string_view text, size_t offset) const;

  std::vector<Pattern> patterns_;       // sorted by text
  std::array<Range, 256> first_bytes_;  // range in patterns_ per first byte
  // First two bytes of a pattern, as first << 8 | second. A one-byte pattern sets all second bytes.
  std::bitset<65536> first_pairs_;
};

struct AddedTokens {
  struct Entry {
    AddedToken token;
    std::string spelling;  // the decoded text: content, or its NFC form if the token is normalized
  };
  std::map<int32_t, Entry> by_id;
  std::map<std::string, int32_t, std::less<>> ids;
  std::set<std::string, std::less<>> special;
};

// Assigns ids as Hugging Face does and ignores the ids in the file. A token of the vocabulary keeps its id
// there; the others are numbered from the vocabulary's size. `file` is the name in error messages.
AddedTokens assign_added_tokens(const TokenizerSpec& spec, const Vocabulary& vocabulary,
                                const std::string& file);

// Finds the tokens that are matched in normalized text, or those matched in raw text.
AddedTokenMatcher make_matcher(const AddedTokens& added, bool normalized);

// Caches the ids of encoded words, for one thread. The cache is bounded and direct-mapped: a word replaces
// the word whose hash selects the same entry.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 31;
  static constexpr size_t kMaxIds = 7;

  // The word, padded with zeros to 32 bytes; the last byte is its length.
  using Key = std::array<uint64_t, 4>;

  // One cache line. The key of a free entry is all zeros, which no word has.
  struct alignas(64) Entry {
    Key key{};
    std::array<int32_t, kMaxIds> ids{};
    int32_t count = 0;
  };

  WordCache() : entries_(size_t{1} << kBits) {}

  // Returns the key of a word. Preconditions: `word` is not empty and not longer than kMaxWordBytes, and
  // `readable` bytes from its start may be read.
  static Key make_key(std::string_view word, size_t readable) {
    Key key{};
    if (readable >= sizeof(Key)) {
      std::memcpy(key.data(), word.data(), sizeof(Key));
      // Clears the bytes after the word, without a branch on its length.
      for (size_t i = 0; i < key.size(); ++i) {
        const int64_t bits = static_cast<int64_t>(8 * word.size()) - static_cast<int64_t>(64 * i);
        const uint64_t mask = bits >= 64 ? ~uint64_t{0} : bits <= 0 ? 0 : (uint64_t{1} << bits) - 1;
        key[i] &= mask;
      }
    } else {
      std::memcpy(key.data(), word.data(), word.size());
    }
    key[3] |= uint64_t{word.size()} << 56;
    return key;
  }

  // Returns the entry of a word. It holds the word if its key is equal.
  Entry& entry(const Key& key) {
    uint64_t hash = key[0] * 0x9E3779B97F4A7C15u ^ key[1] * 0xC2B2AE3D27D4EB4Fu;
    hash ^= key[2] * 0x165667B19E3779F9u ^ key[3] * 0xD6E8FEB86659FD93u;
    hash = (hash ^ hash >> 32) * 0x9E3779B97F4A7C15u;
    return entries_[hash >> (64 - kBits)];
  }

  static void store(Entry& entry, const Key& key, std::span<const int32_t> ids) {
    entry.key = key;
    entry.count = static_cast<int32_t>(ids.size());
    std::memcpy(entry.ids.data(), ids.data(), ids.size_bytes());
  }

 private:
  static constexpr int kBits = 15;  // 2 MiB
  std::vector<Entry> entries_;
};

class Tokenizer {
 public:
  // Loads a tokenizer.json. Throws DataError, naming the file and the field, if it is damaged or not
  // supported.
  static Tokenizer load(const std::filesystem::path& path);
  Tokenizer(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Returns the ids of `text`. Throws DataError if it is not valid UTF-8. Safe to call from many threads.
  std::vector<int32_t> encode(std::string_view text) const;
  // Returns the text of `ids`, special tokens included. Invalid UTF-8, as an incomplete character leaves it,
  // becomes U+FFFD, as in Hugging Face. Throws DataError if an id does not exist.
  std::string decode(std::span<const int32_t> ids) const;
  // Returns the text of ids that a model generated. Special tokens and ids that do not exist are skipped; a
  // model's vocabulary is often padded. A space at the begin is kept, because the ids continue a text.
  std::string decode_generated(std::span<const int32_t> ids) const;

  // Returns the bytes that the id adds to a text; 0 for special tokens and for ids that do not exist.
  int64_t text_bytes(int32_t id) const;

  int64_t vocab_size() const;  // 1 + the largest id
  std::optional<int32_t> token_to_id(std::string_view token) const;
  // The token that ends a document: "<|endoftext|>" or another family's; nullopt if the tokenizer has none.
  std::optional<std::string_view> end_of_text_token() const;
  // The id of that token. Throws DataError if the tokenizer has none.
  int32_t end_of_text() const;
  const std::string& file_text() const;  // the text of tokenizer.json, byte for byte
  const std::string& hash() const;       // XXH3-128 of that text

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtopp::data
