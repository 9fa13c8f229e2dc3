// Mixes the samples of several sources in proportion to their weights.
//
// For each position of the global order, it returns the source and the index of the sample in that source.
// Both depend only on (weights, sizes, seed, position).
#pragma once

#include "dtopp/base/random.h"
#include "dtopp/data/text/token_file.h"

namespace dtopp::data {

// Reads training samples from token streams. A sample is a window of sequence_length + 1 tokens; windows have
// the stride sequence_length. A window never spans two streams. The window of sample i depends only on (seed,
// i), not on world size, micro-batch size or restarts.
class WindowSampler {
 public:
  // Throws DataError if no stream holds a whole window.
  WindowSampler(std::vector<TokenStream> streams, int64_t sequence_length, uint64_t seed);

  uint64_t num_windows() const { return first_window_.back(); }
  std::vector<uint64_t> windows_by_stream() const;
  int64_t sequence_length() const { return sequence_length_; }
  // Reads the window at `position` of the training order. Position i belongs to epoch i / num_windows(); each
  // epoch is a fresh permutation of all windows. `tokens` must have sequence_length + 1 elements.
  void sample(uint64_t position, std::span<int64_t> tokens) const { window(window_at(position), tokens); }
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

 private:
  // The stream of window `index` and its first token there. Throws std::out_of_range beyond the last window.
  std::pair<const TokenStream*, uint64_t> locate(uint64_t index) const;

  std::vector<TokenStream> streams_;
  std::vector<uint64_t> first_window_;  // index of each stream's first window, then the total
  int64_t sequence_length_;
  RandomStream order_;
};

// A repeating pattern of sources.
//
// Its length is the sum of the weights, scaled to the smallest whole numbers (0.7 and 0.3: length 10). If the
// sum exceeds kLongestPattern, the length is kLongestPattern and the shares are rounded to it; each source
// then occurs at least once. Among any n consecutive samples, a source has n times its share. The error is
// below 1 for two sources or if n is a multiple of the pattern length, and below 2 otherwise (Tijdeman,
// "The chairman assignment problem", 1980).
class Mixture {
 public:
  static constexpr uint64_t kLongestPattern = uint64_t{1} << 20;

  // Throws std::invalid_argument if a weight is not above 0, or if there are no weights or more than
  // kLongestPattern.
  explicit Mixture(const std::vector<double>& weights);

  size_t source(uint64_t position) const { return source_[position % source_.size()]; }
  // The number of samples before `position` that come from `source`.
  uint64_t count(size_t source, uint64_t position) const;
  uint64_t pattern_length() const { return source_.size(); }

 private:
  std::vector<uint32_t> source_;                  // by position in the pattern
  std::vector<std::vector<uint32_t>> positions_;  // positions in the pattern, per source
};

// The order of a mixture's samples. Each source has its own epochs; each epoch is a fresh permutation of the
// source's samples.
class MixedOrder {
 public:
  // `sizes` holds the number of samples per source. Throws std::invalid_argument if one of them is 0.
  MixedOrder(const std::vector<double>& weights, std::vector<uint64_t> sizes, uint64_t seed);

  struct Draw {
    size_t source;
    uint64_t index;  // of the sample in that source
  };
  Draw operator()(uint64_t position) const;
  // The source's share of the samples before `position`, and the number of epochs of the source that they
  // make.
  double share(size_t source, uint64_t position) const;
  double epochs(size_t source, uint64_t position) const;

 private:
  Mixture mixture_;
  std::vector<uint64_t> sizes_;
  std::vector<RandomStream> orders_;
};

}  // namespace dtopp::data
