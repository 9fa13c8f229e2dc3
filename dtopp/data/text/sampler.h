// Reads training samples from token streams.
//
// A sample is a window of sequence_length + 1 tokens; windows have the stride sequence_length. A window never
// spans two streams. The window of sample i depends only on (seed, i), not on world size, micro-batch size or
// restarts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtopp/base/random.h"
#include "dtopp/data/text/token_file.h"

namespace dtopp::data {
class WindowSampler {
 public:
  // Throws DataError if no stream holds a whole window.
  WindowSampler(std::vector<TokenStream> streams, int64_t sequence_length, uint64_t seed);

  uint64_t num_windows() const { return first_window_.back(); }
  std::vector<uint64_t> windows_by_stream() const;
  int64_t sequence_length() const { return sequence_length_; }
  // Reads the window at `position` of the training order. Position i belongs to epoch i / num_windows(); each
  // epoch is a fresh permutation of all windows. `tokens` must have sequence_length + 1 elements.
  void sample(uint64_t position, std::span<int64_t> tokens) const;
  // The index in file order of the window at `position` of the training order.
  uint64_t window_at(uint64_t position) const;
  // The index of the stream of window `index`.
  size_t stream_of(uint64_t index) const {
    return static_cast<size_t>(locate(index).first - streams_.data());
  }
  // The stream of window `index` and its tokens there: "data/train: tokens 1024 to 1536".
  std::string describe(uint64_t index) const;
  // Reads window `index` in file order, for validation. Throws std::out_of_range beyond the last window.
  void window(uint64_t index, std::span<int64_t> tokens) const;
  const std::vector<TokenStream>& streams() const { return streams_; }

 private:
  // The stream of window `index` and its first token there. Throws std::out_of_range beyond the last window.
  std::pair<const TokenStream*, uint64_t> locate(uint64_t index) const;

  std::vector<TokenStream> streams_;
  std::vector<uint64_t> first_window_;  // index of each stream's first window, then the total
  int64_t sequence_length_;
  RandomStream order_;
};

}  // namespace dtopp::data
