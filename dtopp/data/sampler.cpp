#include "dtopp/data/sampler.h"

#include <algorithm>

#include "dtopp/base/errors.h"

namespace dtopp {

WindowSampler::WindowSampler(std::vector<TokenStream> streams, int64_t sequence_length, uint64_t seed)
    : streams_(std::move(streams)),
      first_window_{0},
      sequence_length_(sequence_length),
      order_(seed, "sample order") {
  const auto stride = static_cast<uint64_t>(sequence_length);
  for (const TokenStream& stream : streams_) {
    // A window predicts `stride` tokens, so it reads one more than it advances.
    const uint64_t windows = stream.size() == 0 ? 0 : (stream.size() - 1) / stride;
    first_window_.push_back(first_window_.back() + windows);
  }
  if (num_windows() == 0) {
    const std::string where = streams_.empty() ? "the data" : streams_.front().path().string();
    throw DataError(where + ": holds no window of " + std::to_string(sequence_length + 1) +
                    " tokens: use a shorter model.sequence_length or more text");
  }
}

void WindowSampler::sample(uint64_t position, std::span<int64_t> tokens) const {
  const uint64_t epoch = position / num_windows();
  window(Permutation(order_, epoch, num_windows())(position % num_windows()), tokens);
}

void WindowSampler::window(uint64_t index, std::span<int64_t> tokens) const {
  const auto after = std::upper_bound(first_window_.begin(), first_window_.end(), index);
  const auto stream = static_cast<size_t>(after - first_window_.begin()) - 1;
  streams_.at(stream).read((index - first_window_[stream]) * static_cast<uint64_t>(sequence_length_), tokens);
}

}  // namespace dtopp
