// Byte-pair encoding of one word: its bytes become symbols, then the adjacent pair of the best rank (the
// leftmost of equals) is merged until no pair can be.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtopp/data/tokenizer/tokenizer_json.h"
#include "dtopp/data/tokenizer/vocabulary.h"

namespace dtopp {

struct Merge {
  uint32_t rank;  // the lower, the sooner
  int32_t id;     // of the merged token
};

// Pairs of adjacent ids → their merge: open addressing, at most half full.
class MergeTable {
 public:
  explicit MergeTable(size_t merges);
  // A pair seen before takes the new merge.
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
  // Takes vocabulary, merges and the model's flags from `spec`. DataError where they contradict each other.
  BytePairEncoding(const TokenizerSpec& spec, const std::string& file);

  // Appends the ids of `word` (not empty, less than 4 GiB).
  void encode(std::string_view word, std::vector<int32_t>& ids) const;
  const Vocabulary& vocabulary() const { return vocabulary_; }
  const ByteAlphabet& alphabet() const { return alphabet_; }

 private:
  void append_symbols(std::string_view word, std::vector<int32_t>& symbols) const;
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(std::vector<int32_t>& symbols) const;

  std::string file_;
  ByteAlphabet alphabet_;
  Vocabulary vocabulary_;
  MergeTable merges_;
  std::array<int32_t, 256> byte_ids_;  // -1 where the vocabulary lacks the byte
  std::optional<std::string> unk_token_;
  bool fuse_unk_;
  bool ignore_merges_;
};

}  // namespace dtopp
