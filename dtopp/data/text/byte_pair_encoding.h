// Encodes one word by byte-pair encoding.
//
// Each byte of the word becomes a symbol; with marks for spaces (tokenizer_json.h) each character, or its
// bytes if the vocabulary lacks it. Then the adjacent pair with the lowest merge rank is merged (the leftmost
// of equals), until no pair has a merge.
#pragma once

#include "dtopp/data/text/tokenizer_json.h"

namespace dtopp::data {
struct Merge {
  uint32_t rank;  // lower ranks merge first
  int32_t id;     // of the merged token
};

// Maps a pair of adjacent ids to its merge. A hash table with open addressing, at most half full.
class MergeTable {
 public:
  explicit MergeTable(size_t merges);
  // Adds a merge, or replaces the pair's earlier one.
  void set(int32_t left, int32_t right, Merge merge);
  const Merge* find(int32_t left, int32_t right) const {
    const uint64_t key = make_key(left, right);
    for (size_t i = slot_of(key);; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return &slots_[i].merge;
      if (slots_[i].key == kFree) return nullptr;
    }
  }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};
  struct Slot {
    uint64_t key = kFree;
    Merge merge{};
  };
  static uint64_t make_key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const {
    uint64_t hash = (key ^ seed_) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93u;
    return (hash ^ hash >> 32) & mask_;
  }

  uint64_t seed_;
  size_t mask_;
  std::vector<Slot> slots_;
};

class BytePairEncoding {
 public:
  // Takes vocabulary, merges and the model's flags from `spec`. Throws DataError if they contradict each
  // other. `file` is the name in error messages.
  BytePairEncoding(const TokenizerSpec& spec, const std::string& file);

  // Appends the ids of `word` (not empty, less than 4 GiB).
  void encode(std::string_view word, std::vector<int32_t>& ids) const;
  const Vocabulary& vocabulary() const { return vocabulary_; }
  const ByteAlphabet& alphabet() const { return alphabet_; }

 private:
  void append_characters(std::string_view word, std::vector<int32_t>& symbols) const;
  void append_symbols(std::string_view word, std::vector<int32_t>& symbols) const;
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(std::vector<int32_t>& symbols) const;

  std::string file_;
  ByteAlphabet alphabet_;
  Vocabulary vocabulary_;
  MergeTable merges_;
  bool by_character_;
  std::array<int32_t, 256> byte_ids_;  // -1 if the vocabulary lacks the byte
  std::optional<std::string> unk_token_;
  bool fuse_unk_, ignore_merges_;
};

}  // namespace dtopp::data
