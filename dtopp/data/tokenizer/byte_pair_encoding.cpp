#include "dtopp/data/tokenizer/byte_pair_encoding.h"

#include <bit>
#include <limits>
#include <queue>

#include "dtopp/base/errors.h"

namespace dtopp::data {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
// Up to this many symbols, a scan for the best pair is faster than a queue.
constexpr size_t kShortWord = 48;

struct Symbol {
  int32_t id;
  uint32_t previous;
  uint32_t next;
  bool merged;  // into the symbol before it
};

// A pair that may be merged. The queue returns candidates by rank, then from left to right.
struct Candidate {
  uint32_t rank;
  uint32_t position;
  int32_t id;
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
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
      unk_token_(spec.unk_token),
      fuse_unk_(spec.fuse_unk),
      ignore_merges_(spec.ignore_merges) {
  uint32_t rank = 0;
  for (const auto& pair : spec.merges) {
    const auto id_of = [&](const std::string& token) {
      const auto id = vocabulary_.id(token);
      if (!id)
        throw DataError(file + ": model.merges: merge " + std::to_string(rank) + " (" + quote(pair.first) +
                        ", " + quote(pair.second) + ") needs the token " + quote(token) +
                        ", which model.vocab lacks");
      return *id;
    };
    merges_.set(id_of(pair.first), id_of(pair.second), {rank, id_of(pair.first + pair.second)});
    ++rank;
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char value = static_cast<char>(byte);
    byte_ids_[byte] = vocabulary_.id(alphabet_.encode({&value, 1})).value_or(-1);
    if (byte_ids_[byte] < 0 && spec.byte_fallback)
      throw DataError(file + ": model.byte_fallback: is supported only if model.vocab holds every byte");
  }
}

void BytePairEncoding::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    if (const auto id = vocabulary_.id(alphabet_.encode(word))) {
      ids.push_back(*id);
      return;
    }
  }
  if (word.size() >= kNone) throw DataError("a word of 4 GiB or more cannot be tokenized; split the text");
  std::vector<int32_t> symbols;
  append_symbols(word, symbols);
  if (symbols.size() <= kShortWord)
    merge_short(symbols);
  else
    merge_long(symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
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
        throw DataError(file_ + ": model.vocab lacks the byte " + std::to_string(static_cast<uint8_t>(byte)) +
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
    for (size_t i = 1; i < symbols.size(); ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (symbols.empty() || pairs[best].rank == kNone) return;
    symbols[best] = pairs[best].id;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
    for (size_t i = best + 1; i < symbols.size(); ++i) pairs[i] = pairs[i + 1];
    pairs[best] = pair_at(best);
    if (best > 0) pairs[best - 1] = pair_at(best - 1);
  }
}

void BytePairEncoding::merge_long(std::vector<int32_t>& ids) const {
  const uint32_t count = static_cast<uint32_t>(ids.size());
  std::vector<Symbol> symbols(count);
  std::vector<Candidate> candidates;
  for (uint32_t i = 0; i < count; ++i) {
    symbols[i] = {ids[i], i - 1, i + 1 < count ? i + 1 : kNone, false};
    const Merge* merge = i + 1 < count ? merges_.find(ids[i], ids[i + 1]) : nullptr;
    if (merge != nullptr) candidates.push_back({merge->rank, i, merge->id});
  }
  std::priority_queue<Candidate> queue(std::less<Candidate>{}, std::move(candidates));
  const auto offer = [&](uint32_t position) {
    const Symbol& symbol = symbols[position];
    const Merge* merge = merges_.find(symbol.id, symbols[symbol.next].id);
    if (merge != nullptr) queue.push({merge->rank, position, merge->id});
  };
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.position];
    if (left.merged || left.next == kNone) continue;
    Symbol& right = symbols[left.next];
    // Either symbol may have been merged with another one since the pair entered the queue.
    const Merge* merge = merges_.find(left.id, right.id);
    if (merge == nullptr || merge->id != best.id) continue;
    left.id = best.id;
    left.next = right.next;
    right.merged = true;
    if (left.next != kNone) {
      symbols[left.next].previous = best.position;
      offer(best.position);
    }
    if (left.previous != kNone) offer(left.previous);
  }
  ids.clear();
  for (uint32_t i = 0; i != kNone; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace dtopp::data
