#include "dtopp/data/text/mixture.h"

#include <cmath>
#include <numeric>

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
    throw DataError((streams_.empty() ? std::string("no token data") : streams_.front().path().string()),
                    ": holds ", tokens, " tokens, fewer than one sample of ", sequence_length + 1,
                    "; prepare more text or shorten the sequence");
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

void WindowSampler::window(uint64_t index, std::span<int64_t> tokens) const {
  if (tokens.size() != static_cast<size_t>(sequence_length_) + 1)
    throw std::invalid_argument("WindowSampler: tokens must have sequence_length + 1 elements");
  const auto [stream, first] = locate(index);
  stream->read(first, tokens);
}

namespace {

constexpr uint64_t kLongest = Mixture::kLongestPattern;

// Returns the weights times `scale`, divided by their greatest common divisor. Returns nullopt if the
// products are not whole numbers or if the quotients sum to more than the longest pattern.
std::optional<std::vector<uint64_t>> whole_weights(const std::vector<double>& weights, double scale) {
  constexpr double kLargest = 9e15;    // below it, every whole number is a distinct double
  constexpr double kRounding = 1e-12;  // relative rounding error of the decimal fraction and the product
  std::vector<uint64_t> whole;
  uint64_t divisor = 0;
  for (const double weight : weights) {
    const double scaled = weight * scale, nearest = std::round(scaled);
    if (nearest < 1 || scaled > kLargest || std::abs(scaled - nearest) > kRounding * scaled)
      return std::nullopt;
    whole.push_back(static_cast<uint64_t>(nearest));
    divisor = std::gcd(divisor, whole.back());
  }
  uint64_t sum = 0;
  for (uint64_t& weight : whole) {
    weight /= divisor;
    if (weight > kLongest) return std::nullopt;
    sum += weight;
  }
  return sum <= kLongest ? std::optional(whole) : std::nullopt;
}

// Rounds the shares of the longest pattern down, but to at least 1. The sources that lost most by rounding
// get the rest.
std::vector<uint64_t> rounded_weights(const std::vector<double>& weights) {
  const double largest = *std::ranges::max_element(weights);
  double sum = 0;
  for (const double weight : weights) sum += weight / largest;
  std::vector<uint64_t> whole;
  std::vector<double> lost;
  for (const double weight : weights) {
    const double exact = weight / largest / sum * static_cast<double>(kLongest);
    whole.push_back(std::max<uint64_t>(static_cast<uint64_t>(exact), 1));
    lost.push_back(exact - static_cast<double>(whole.back()));
  }
  for (uint64_t total = std::accumulate(whole.begin(), whole.end(), uint64_t{0}); total != kLongest;) {
    const bool more = total < kLongest;
    const auto chosen = static_cast<size_t>(more ? std::ranges::max_element(lost) - lost.begin()
                                                 : std::ranges::max_element(whole) - whole.begin());
    whole[chosen] += more ? 1 : -1;
    lost[chosen] -= more ? 1 : -1;
    total += more ? 1 : -1;
  }
  return whole;
}

// Returns the number of occurrences of each source in the pattern.
std::vector<uint64_t> counts_of(const std::vector<double>& weights) {
  const bool possible = !weights.empty() && weights.size() <= kLongest &&
                        std::ranges::all_of(weights, [](double w) { return w > 0 && std::isfinite(w); });
  if (!possible) throw std::invalid_argument("Mixture: weights must be finite numbers above 0");
  constexpr int kDecimals = 12;
  double scale = 1;
  for (int decimals = 0; decimals <= kDecimals; ++decimals, scale *= 10)
    if (auto whole = whole_weights(weights, scale)) return *whole;
  return rounded_weights(weights);
}

// Returns Tijdeman's choice among n sources for sample t, counted from 1. A source is eligible if it is at
// least 1 / (2 n - 2) samples behind its share. Its deadline is the time at which it would be too far behind.
// The eligible source with the earliest deadline is chosen. All numbers are multiplied by the pattern's
// length.
size_t choose(const std::vector<uint64_t>& counts, const std::vector<std::vector<uint32_t>>& positions,
              int64_t length, int64_t t) {
  const auto slack = std::max<int64_t>(2 * std::ssize(counts) - 2, 1);
  size_t chosen = counts.size();
  int64_t soonest = 0;  // numerator of the chosen source's deadline; the denominator is its count
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto count = static_cast<int64_t>(counts[i]);
    const int64_t behind = count * t - length * static_cast<int64_t>(positions[i].size());
    if (slack * behind < length) continue;
    const int64_t deadline = slack * (length - behind) - length;
    if (chosen < counts.size() && deadline * static_cast<int64_t>(counts[chosen]) >= soonest * count)
      continue;
    chosen = i;
    soonest = deadline;
  }
  return chosen;
}

}  // namespace

Mixture::Mixture(const std::vector<double>& weights) : positions_(weights.size()) {
  const std::vector<uint64_t> counts = counts_of(weights);
  const uint64_t length = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  for (uint64_t position = 0; position < length; ++position) {
    const size_t source =
        choose(counts, positions_, static_cast<int64_t>(length), static_cast<int64_t>(position) + 1);
    source_.push_back(static_cast<uint32_t>(source));
    positions_[source].push_back(static_cast<uint32_t>(position));
  }
}

uint64_t Mixture::count(size_t source, uint64_t position) const {
  const std::vector<uint32_t>& positions = positions_.at(source);
  const uint64_t length = source_.size();
  const auto within = std::ranges::lower_bound(positions, position % length) - positions.begin();
  return position / length * positions.size() + static_cast<uint64_t>(within);
}

MixedOrder::MixedOrder(const std::vector<double>& weights, std::vector<uint64_t> sizes, uint64_t seed)
    : mixture_(weights), sizes_(std::move(sizes)) {
  if (sizes_.size() != weights.size() || std::ranges::find(sizes_, 0U) != sizes_.end())
    throw std::invalid_argument("MixedOrder: every source needs a size above 0");
  for (size_t i = 0; i < sizes_.size(); ++i)
    orders_.emplace_back(seed, "sample order of source " + std::to_string(i));
}

MixedOrder::Draw MixedOrder::operator()(uint64_t position) const {
  const size_t source = mixture_.source(position);
  const uint64_t drawn = mixture_.count(source, position), size = sizes_[source];
  return {source, Permutation(orders_[source], drawn / size, size)(drawn % size)};
}

double MixedOrder::share(size_t source, uint64_t position) const {
  if (position == 0) return 0;
  return static_cast<double>(mixture_.count(source, position)) / static_cast<double>(position);
}

double MixedOrder::epochs(size_t source, uint64_t position) const {
  return static_cast<double>(mixture_.count(source, position)) / static_cast<double>(sizes_.at(source));
}

}  // namespace dtopp::data
