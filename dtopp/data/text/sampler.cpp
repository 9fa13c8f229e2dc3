#include "dtopp/data/text/sampler.h"

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

std::vector<uint64_t> WindowSampler::windows_by_stream() const {
  std::vector<uint64_t> windows;
  for (size_t i = 0; i < streams_.size(); ++i) windows.push_back(first_window_[i + 1] - first_window_[i]);
  return windows;
}

uint64_t WindowSampler::window_at(uint64_t position) const {
  const Permutation permutation(order_, position / num_windows(), num_windows());
  return permutation(position % num_windows());
}

std::pair<const TokenStream*, uint64_t> WindowSampler::locate(uint64_t index) const {
  if (index >= num_windows()) throw std::out_of_range("WindowSampler: window beyond the last");
  const auto after = std::upper_bound(first_window_.begin(), first_window_.end(), index);
  const auto stream = static_cast<size_t>(after - first_window_.begin()) - 1;
  return {&streams_[stream], (index - first_window_[stream]) * static_cast<uint64_t>(sequence_length_)};
}

std::string WindowSampler::describe(uint64_t index) const {
  const auto [stream, first] = locate(index);
  return stream->path().string() + ": tokens " + std::to_string(first) + " to " +
         std::to_string(first + static_cast<uint64_t>(sequence_length_));
}

void WindowSampler::sample(uint64_t position, std::span<int64_t> tokens) const {
  window(window_at(position), tokens);
}

void WindowSampler::window(uint64_t index, std::span<int64_t> tokens) const {
  if (tokens.size() != static_cast<size_t>(sequence_length_) + 1)
    throw std::invalid_argument("WindowSampler: tokens must have sequence_length + 1 elements");
  const auto [stream, first] = locate(index);
  stream->read(first, tokens);
}

}  // namespace dtopp::data
