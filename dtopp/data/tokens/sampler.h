// Which tokens a sample holds. Sample i is a window of sequence_length + 1 tokens, stride sequence_length,
// from the streams laid end to end (a window never spans two streams). Its place depends on (seed, i) alone:
// world size, micro-batch size and restarts do not enter.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtopp/base/random.h"
#include "dtopp/data/tokens/token_file.h"

namespace dtopp {

class WindowSampler {
 public:
  // DataError when no stream holds a whole window.
  WindowSampler(std::vector<TokenStream> streams, int64_t sequence_length, uint64_t seed);

  uint64_t num_windows() const { return first_window_.back(); }
  int64_t sequence_length() const { return sequence_length_; }
  // Training order: position i belongs to epoch i / num_windows(), a fresh permutation of all windows each.
  void sample(uint64_t position, std::span<int64_t> tokens) const;
  // Window `index` in file order (validation).
  void window(uint64_t index, std::span<int64_t> tokens) const;
  const std::vector<TokenStream>& streams() const { return streams_; }

 private:
  std::vector<TokenStream> streams_;
  std::vector<uint64_t> first_window_;  // of each stream, then the total
  int64_t sequence_length_;
  RandomStream order_;
};

}  // namespace dtopp
