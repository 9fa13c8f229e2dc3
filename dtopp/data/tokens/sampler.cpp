#include "dtopp/data/tokens/sampler.h"

#include <algorithm>
#include <stdexcept>

#include "dtopp/base/errors.h"

namespace dtopp::data {

WindowSampler::WindowSampler(std::vector<TokenStream> streams, int64_t sequence_length, uint64_t seed)
    : streams_(std::move(streams)),
      first_window_{0},
      sequence_length_(sequence_length),
      order_(seed, "sample order") {
  if (sequence_length < 1) throw std::invalid_argument("WindowSampler: sequence_length must be at least 1");
  uint64_t tokens = 0;
  for (const TokenStream& stream : streams_) {
    // Neighboring windows share one token: the last target of one window is the first input of the next.
    const uint64_t predicted = std::max<uint64_t>(stream.size(), 1) - 1;
    first_window_.push_back(first_window_.back() + predicted / static_cast<uint64_t>(sequence_length));
    tokens += stream.size();
  }
  if (num_windows() == 0)
    throw DataError((streams_.empty() ? std::string("no token data") : streams_.front().path().string()) +
                    ": holds " + std::to_string(tokens) + " tokens, fewer than one sample of " +
                    std::to_string(sequence_length + 1) + "; prepare more text or shorten the sequence");
}

void WindowSampler::sample(uint64_t position, std::span<int64_t> tokens) const {
  const Permutation permutation(order_, position / num_windows(), num_windows());
  window(permutation(position % num_windows()), tokens);
}

void WindowSampler::window(uint64_t index, std::span<int64_t> tokens) const {
  if (index >= num_windows()) throw std::out_of_range("WindowSampler: window beyond the last");
  if (tokens.size() != static_cast<size_t>(sequence_length_) + 1)
    throw std::invalid_argument("WindowSampler: tokens must have sequence_length + 1 elements");
  const auto after = std::upper_bound(first_window_.begin(), first_window_.end(), index);
  const auto stream = static_cast<size_t>(after - first_window_.begin()) - 1;
  const auto stride = static_cast<uint64_t>(sequence_length_);
  streams_[stream].read((index - first_window_[stream]) * stride, tokens);
}

}  // namespace dtopp::data
