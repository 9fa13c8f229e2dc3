#include "dtopp/tasks/exemplars.h"

#include <bit>
#include <optional>
#include <random>
#include <string>

#include "dtopp/base/errors.h"

namespace dtopp::tasks {
namespace {

constexpr uint32_t kSeed = 1234;

// Fills the state of MT19937 like CPython for a small integer seed: init_by_array of the reference
// implementation with the one-word key {seed}.
struct PythonSeed {
  using result_type = uint32_t;
  uint32_t seed;

  template <class Iterator>
  void generate(Iterator begin, Iterator end) const {
    const auto size = static_cast<uint32_t>(end - begin);
    const auto mixed = [&](uint32_t i) { return begin[i - 1] ^ (begin[i - 1] >> 30); };
    begin[0] = 19650218;
    for (uint32_t i = 1; i < size; ++i) begin[i] = 1812433253U * mixed(i) + i;
    uint32_t i = 1;
    const auto advance = [&] {
      if (++i < size) return;
      begin[0] = begin[size - 1];
      i = 1;
    };
    for (uint32_t k = 0; k < size; ++k, advance()) begin[i] = (begin[i] ^ (mixed(i) * 1664525U)) + seed;
    for (uint32_t k = 1; k < size; ++k, advance()) begin[i] = (begin[i] ^ (mixed(i) * 1566083941U)) - i;
    begin[0] = 0x80000000U;
  }
};

// Uniform in [0, bound), like CPython's Random._randbelow for bounds up to 2^32 - 1.
int64_t draw_below(std::mt19937& generator, uint32_t bound) {
  const int bits = std::bit_width(bound);
  uint32_t value = bound;
  while (value >= bound) value = static_cast<uint32_t>(generator()) >> (32 - bits);
  return value;
}

// A set of small non-negative integers with the iteration order of a CPython set.
class PythonSet {
 public:
  size_t size() const { return used_; }

  bool contains(int64_t value) const { return slots_[search(value).slot] == value; }

  void insert(int64_t value) {
    const Found found = search(value);
    if (slots_[found.slot] == value) return;
    ++used_;
    if (found.tombstone) {
      slots_[*found.tombstone] = value;
      return;
    }
    slots_[found.slot] = value;
    ++fill_;
    if (5 * fill_ >= 3 * (slots_.size() - 1)) rebuild();
  }

  void erase(int64_t value) {
    const Found found = search(value);
    if (slots_[found.slot] != value) return;
    slots_[found.slot] = kTombstone;
    --used_;
  }

  std::vector<int64_t> elements() const {
    std::vector<int64_t> values;
    for (const int64_t slot : slots_) {
      if (slot >= 0) values.push_back(slot);
    }
    return values;
  }

 private:
  static constexpr int64_t kEmpty = -1;
  static constexpr int64_t kTombstone = -2;
  static constexpr size_t kLinearProbes = 9;

  struct Found {
    size_t slot = 0;  // contains the value or is empty
    std::optional<size_t> tombstone;
  };

  Found search(int64_t value) const {
    const size_t mask = slots_.size() - 1;
    auto perturb = static_cast<size_t>(value);
    size_t group = perturb & mask;
    Found found;
    for (;;) {
      const size_t last = group + kLinearProbes <= mask ? group + kLinearProbes : group;
      for (size_t slot = group; slot <= last; ++slot) {
        found.slot = slot;
        if (slots_[slot] == value || slots_[slot] == kEmpty) return found;
        if (slots_[slot] == kTombstone) found.tombstone = slot;
      }
      perturb >>= 5;
      group = (5 * group + 1 + perturb) & mask;
    }
  }

  void rebuild() {
    size_t size = 8;
    while (size <= 4 * used_) size *= 2;
    const std::vector<int64_t> values = elements();
    slots_.assign(size, kEmpty);
    for (const int64_t value : values) slots_[search(value).slot] = value;
    fill_ = used_;
  }

  std::vector<int64_t> slots_ = std::vector<int64_t>(8, kEmpty);
  size_t fill_ = 0;  // slots used since the last rebuild, tombstones included
  size_t used_ = 0;
};

}  // namespace

std::vector<std::vector<int64_t>> draw_exemplars(int64_t num_items, int64_t shots, int64_t count) {
  std::vector<std::vector<int64_t>> exemplars(static_cast<size_t>(count));
  if (shots == 0) return exemplars;
  if (num_items < kFewestItemsWithExemplars)
    throw DataError("a data set has " + std::to_string(num_items) +
                    " items; drawing examples needs at least " + std::to_string(kFewestItemsWithExemplars));
  const auto bound = static_cast<uint32_t>(num_items);
  PythonSeed seed{kSeed};
  std::mt19937 generator(seed);
  for (int64_t item = 0; item < count; ++item) {
    // random.sample() skips indices that it has drawn before; the set does the same.
    PythonSet chosen;
    while (chosen.size() < static_cast<size_t>(shots)) chosen.insert(draw_below(generator, bound));
    if (chosen.contains(item)) {
      chosen.erase(item);
      while (chosen.size() < static_cast<size_t>(shots)) {
        const int64_t value = draw_below(generator, bound);
        if (value != item) chosen.insert(value);
      }
    }
    exemplars[static_cast<size_t>(item)] = chosen.elements();
  }
  return exemplars;
}

}  // namespace dtopp::tasks
