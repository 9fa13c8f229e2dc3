#include "dtopp/data/text/byte_pair_encoding.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "dtopp/base/errors.h"
#include "dtopp/data/text/unicode.h"

namespace dtopp::data {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
// Up to this many symbols, a scan for the best pair is faster than a queue.
constexpr size_t kShortWord = 48;

// The symbols of a long word, each at the position of its first byte-symbol.
//
// A symbol that was merged from n > 1 byte-symbols leaves n - 1 holes behind it. The first and the last hole
// hold -n, which leads to the symbol's neighbors. Memory: 4 bytes per byte-symbol.
class SymbolList {
 public:
  explicit SymbolList(std::vector<int32_t>& ids) : ids_(ids) {}

  size_t end() const { return ids_.size(); }
  int32_t id(size_t position) const { return ids_[position]; }
  size_t next(size_t position) const {
    const size_t after = position + 1;
    return after < ids_.size() && ids_[after] < 0 ? position + hole_size(after) : after;
  }
  // Precondition: position > 0.
  size_t previous(size_t position) const {
    const size_t before = position - 1;
    return ids_[before] < 0 ? position - hole_size(before) : before;
  }
  // Merges the symbol with the next one.
  void merge(size_t position, int32_t id) {
    const size_t end = next(next(position));
    ids_[position] = id;
    ids_[position + 1] = ids_[end - 1] = -static_cast<int32_t>(end - position);
  }
  // Removes the holes.
  void compact() {
    size_t count = 0;
    for (size_t position = 0, after; position < ids_.size(); position = after) {
      after = next(position);
      ids_[count++] = ids_[position];
    }
    ids_.resize(count);
  }

 private:
  size_t hole_size(size_t hole) const { return static_cast<size_t>(-ids_[hole]); }

  std::vector<int32_t>& ids_;
};

// Finds the position with the lowest rank, the leftmost of equals: a tournament between blocks of positions.
// Memory: 4.5 bytes per position.
class RankTournament {
 public:
  // `ranks` holds one rank per position, kNone for positions without a merge.
  explicit RankTournament(std::vector<uint32_t> ranks)
      : ranks_(std::move(ranks)),
        leaves_(std::bit_ceil((ranks_.size() + kBlock - 1) / kBlock)),
        least_(2 * leaves_, kNothing) {
    for (size_t block = 0; block * kBlock < ranks_.size(); ++block) least_[leaves_ + block] = least_in(block);
    for (size_t node = leaves_ - 1; node > 0; --node)
      least_[node] = std::min(least_[2 * node], least_[2 * node + 1]);
  }

  uint32_t lowest_rank() const { return static_cast<uint32_t>(least_[1] >> 32); }
  size_t position() const { return static_cast<uint32_t>(least_[1]); }
  void set(size_t position, uint32_t rank) {
    ranks_[position] = rank;
    const size_t block = position / kBlock;
    uint64_t least = least_in(block);
    for (size_t node = leaves_ + block; least_[node] != least; node /= 2) {
      least_[node] = least;
      if (node == 1) return;
      least = std::min(least, least_[node ^ 1]);
    }
  }

 private:
  static constexpr size_t kBlock = 32;
  static constexpr uint64_t kNothing = ~uint64_t{0};

  // The lowest rank of a block in the upper half, its position in the lower.
  uint64_t least_in(size_t block) const {
    uint64_t least = kNothing;
    for (size_t i = block * kBlock; i < std::min(ranks_.size(), (block + 1) * kBlock); ++i)
      least = std::min(least, uint64_t{ranks_[i]} << 32 | i);
    return least;
  }

  std::vector<uint32_t> ranks_;
  size_t leaves_;                // of a binary tree
  std::vector<uint64_t> least_;  // by node: 1 is the root, the children of n are 2 n and 2 n + 1
};

}  // namespace

MergeTable::MergeTable(size_t merges)
    : seed_(make_hash_seed()), mask_(std::bit_ceil(2 * merges + 2) - 1), slots_(mask_ + 1) {}

void MergeTable::set(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = make_key(left, right);
  size_t i = slot_of(key);
  while (slots_[i].key != kFree && slots_[i].key != key) i = (i + 1) & mask_;
  slots_[i] = {key, merge};
}

BytePairEncoding::BytePairEncoding(const TokenizerSpec& spec, const std::string& file)
    : file_(file),
      vocabulary_(spec.vocab, file),
      merges_(spec.merges.size()),
      by_character_(spec.space_marks.has_value()),
      unk_token_(spec.unk_token),
      fuse_unk_(spec.fuse_unk),
      ignore_merges_(spec.ignore_merges) {
  uint32_t rank = 0;
  for (const auto& pair : spec.merges) {
    const auto id_of = [&](const std::string& token) {
      const auto id = vocabulary_.id(token);
      if (!id)
        throw DataError(file, ": model.merges: merge ", rank, " (", quote(pair.first), ", ",
                        quote(pair.second), ") needs the token ", quote(token), ", which model.vocab lacks");
      return *id;
    };
    merges_.set(id_of(pair.first), id_of(pair.second), {rank, id_of(pair.first + pair.second)});
    ++rank;
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char value = static_cast<char>(byte);
    const std::string token =
        by_character_ ? byte_token(static_cast<uint8_t>(byte)) : alphabet_.encode({&value, 1});
    byte_ids_[byte] = vocabulary_.id(token).value_or(-1);
    if (byte_ids_[byte] < 0 && spec.byte_fallback)
      throw DataError(file, ": model.byte_fallback: is supported only if model.vocab holds every byte");
  }
}

void BytePairEncoding::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    if (const auto id = vocabulary_.id(by_character_ ? std::string(word) : alphabet_.encode(word))) {
      ids.push_back(*id);
      return;
    }
  }
  if (word.size() >= kNone) throw DataError("a word of 4 GiB or more cannot be tokenized; split the text");
  std::vector<int32_t> symbols;
  by_character_ ? append_characters(word, symbols) : append_symbols(word, symbols);
  if (symbols.size() <= kShortWord)
    merge_short(symbols);
  else
    merge_long(symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

void BytePairEncoding::append_characters(std::string_view word, std::vector<int32_t>& symbols) const {
  for (size_t begin = 0; begin < word.size();) {
    const std::string_view character = word.substr(begin, code_point_at(word, begin).bytes);
    begin += character.size();
    if (const auto id = vocabulary_.id(character)) {
      symbols.push_back(*id);
    } else {
      for (const char byte : character) symbols.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
    }
  }
}

// A byte that the vocabulary lacks becomes the unknown token. Without an unknown token it is dropped.
void BytePairEncoding::append_symbols(std::string_view word, std::vector<int32_t>& symbols) const {
  symbols.reserve(word.size());
  bool unknown_before = false;
  for (const char byte : word) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(byte)];
    if (id >= 0) symbols.push_back(id);
    if (id < 0 && unk_token_ && !(fuse_unk_ && unknown_before)) {
      const auto unknown = vocabulary_.id(*unk_token_);
      if (!unknown)
        throw DataError(file_, ": model.vocab lacks the byte ", static_cast<uint8_t>(byte),
                        " and model.unk_token");
      symbols.push_back(*unknown);
    }
    unknown_before = id < 0;
  }
}

void BytePairEncoding::merge_short(std::vector<int32_t>& symbols) const {
  constexpr Merge kNoMerge = {kNone, -1};
  std::array<Merge, kShortWord> pairs;  // pairs[i]: the merge of symbols i and i + 1
  const auto pair_at = [&](size_t i) {
    const Merge* merge = i + 1 < symbols.size() ? merges_.find(symbols[i], symbols[i + 1]) : nullptr;
    return merge != nullptr ? *merge : kNoMerge;
  };
  for (size_t i = 0; i < symbols.size(); ++i) pairs[i] = pair_at(i);
  for (;;) {
    size_t best = 0;
    for (size_t i = 1; i < symbols.size(); ++i)
      if (pairs[i].rank < pairs[best].rank) best = i;
    if (symbols.empty() || pairs[best].rank == kNone) return;
    symbols[best] = pairs[best].id;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
    for (size_t i = best + 1; i < symbols.size(); ++i) pairs[i] = pairs[i + 1];
    pairs[best] = pair_at(best);
    if (best > 0) pairs[best - 1] = pair_at(best - 1);
  }
}

void BytePairEncoding::merge_long(std::vector<int32_t>& ids) const {
  SymbolList symbols(ids);
  const auto rank_at = [&](size_t position) {
    const size_t next = symbols.next(position);
    const Merge* merge =
        next < symbols.end() ? merges_.find(symbols.id(position), symbols.id(next)) : nullptr;
    return merge != nullptr ? merge->rank : kNone;
  };
  std::vector<uint32_t> initial(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) initial[i] = rank_at(i);
  RankTournament ranks(std::move(initial));
  while (ranks.lowest_rank() != kNone) {
    const size_t left = ranks.position(), right = symbols.next(left);
    symbols.merge(left, merges_.find(symbols.id(left), symbols.id(right))->id);
    ranks.set(right, kNone);
    ranks.set(left, rank_at(left));
    if (left > 0) ranks.set(symbols.previous(left), rank_at(symbols.previous(left)));
  }
  symbols.compact();
}

}  // namespace dtopp::data
