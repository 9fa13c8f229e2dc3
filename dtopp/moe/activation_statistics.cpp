#include "dtopp/moe/activation_statistics.h"

#include <cmath>
#include <utility>

#include "dtopp/base/format.h"

namespace dtopp::moe {

namespace {

double deviation_of(int64_t sum, int64_t squares, int64_t count) {
  if (count == 0) return 0.0;
  const double mean = static_cast<double>(sum) / static_cast<double>(count);
  return std::sqrt(std::max(0.0, static_cast<double>(squares) / static_cast<double>(count) - mean * mean));
}

struct Moments {
  int64_t tokens = 0, sum = 0, squares = 0;

  void add(const Tensor& histogram) {
    const Tensor host = histogram.cpu().contiguous();
    const auto* count = host.const_data_ptr<int64_t>();
    for (int64_t n = 0; n < host.numel(); ++n) {
      tokens += count[n];
      sum += n * count[n];
      squares += n * n * count[n];
    }
  }
  double mean() const { return tokens == 0 ? 0.0 : static_cast<double>(sum) / static_cast<double>(tokens); }
  double deviation() const { return deviation_of(sum, squares, tokens); }
};

// The sums of n and n² over tokens (token_sums). Sums of signs are whole numbers that f32 represents exactly.
Tensor sums_of_tokens(std::span<const ops::RouteOutput> layers) {
  Tensor used_T;
  for (const ops::RouteOutput& routing : layers) {
    const Tensor of_layer_T = routing.gates_TE.detach().sign().sum(1).to(at::kLong);
    used_T = used_T.defined() ? used_T + of_layer_T : of_layer_T;
  }
  return at::stack({used_T.sum(), used_T.square().sum()});
}

constexpr double kMostOff = 0.5;  // relative to T

}  // namespace

ActivationStatistics::ActivationStatistics(Tensor counts_LE, Tensor histogram_LN, Tensor token_sums_2,
                                           int64_t tokens)
    : num_layers_(counts_LE.size(0)),
      tokens_(tokens),
      counts_LE_(std::move(counts_LE)),
      histogram_LN_(std::move(histogram_LN)),
      token_sums_2_(std::move(token_sums_2)) {}

Tensor ActivationStatistics::to_vector(int64_t num_experts, const at::Device& device) const {
  if (!counts_LE_.defined())
    return at::zeros({vector_size(num_layers_, num_experts)}, at::device(device).dtype(at::kDouble));
  const auto list = [](const Tensor& counts) { return counts.to(at::kDouble).view({-1}); };
  return at::cat({list(token_sums_2_), list(counts_LE_), list(histogram_LN_)});
}

ActivationStatistics ActivationStatistics::from_vector(const Tensor& values, int64_t num_layers,
                                                       int64_t num_experts, int64_t tokens) {
  if (num_layers == 0) return ActivationStatistics();
  const int64_t counts = num_layers * num_experts;
  const auto part = [&](int64_t begin, int64_t size) { return values.narrow(0, begin, size).to(at::kLong); };
  return {part(kTokenSums, counts).view({num_layers, num_experts}),
          part(kTokenSums + counts, counts + num_layers).view({num_layers, num_experts + 1}),
          part(0, kTokenSums), tokens};
}

void ActivationStatistics::add(std::span<const ops::RouteOutput> layers) {
  if (layers.empty()) return;
  std::vector<Tensor> counts, histograms;
  for (const ops::RouteOutput& routing : layers) {
    counts.push_back(routing.tokens_per_expert_E);
    histograms.push_back(routing.active_histogram);
  }
  add({at::stack(counts), at::stack(histograms), sums_of_tokens(layers), layers[0].gates_TE.size(0)});
}

void ActivationStatistics::add(const ActivationStatistics& other) {
  if (!other.counts_LE_.defined()) return;
  const bool first = !counts_LE_.defined();
  counts_LE_ = first ? other.counts_LE_ : counts_LE_ + other.counts_LE_;
  histogram_LN_ = first ? other.histogram_LN_ : histogram_LN_ + other.histogram_LN_;
  token_sums_2_ = first ? other.token_sums_2_ : token_sums_2_ + other.token_sums_2_;
  tokens_ += other.tokens_;
}

std::vector<double> ActivationStatistics::layer_means() const {
  if (!counts_LE_.defined() || tokens_ == 0) return {};
  const Tensor mean_L = num_assignments().cpu().to(at::kDouble) / static_cast<double>(tokens_);
  const auto* means = mean_L.const_data_ptr<double>();
  return {means, means + mean_L.numel()};
}

ActivationSummary ActivationStatistics::summary(int64_t layer) const {
  if (!counts_LE_.defined()) return {};
  Moments moments;
  moments.add(histogram_LN_[layer]);
  const Tensor counts_E = counts_LE_[layer].cpu();
  const double mean_count = counts_E.to(at::kDouble).mean().item<double>();
  return {moments.mean(), moments.deviation(),
          mean_count == 0 ? 0.0 : counts_E.max().item<double>() / mean_count,
          (counts_E == 0).sum().item<int64_t>()};
}

ActivationSummary ActivationStatistics::summary() const {
  if (!counts_LE_.defined()) return {};
  Moments moments;
  ActivationSummary all;
  for (int64_t layer = 0; layer < num_layers(); ++layer) {
    moments.add(histogram_LN_[layer]);
    const ActivationSummary one = summary(layer);
    all.imbalance += one.imbalance / static_cast<double>(num_layers());
    all.dead_experts += one.dead_experts;
  }
  all.mean = moments.mean();
  all.deviation = moments.deviation();
  return all;
}

double ActivationStatistics::token_mean_deviation() const {
  if (!token_sums_2_.defined()) return 0.0;
  const Tensor sums = token_sums_2_.cpu();
  const auto* of = sums.const_data_ptr<int64_t>();
  return deviation_of(of[0], of[1], tokens_) / static_cast<double>(num_layers_);
}

std::optional<std::string> BudgetWatch::observe(int64_t step, const std::vector<double>& active_L) {
  if (!config::has_controller(config_.method) || active_L.empty() || warned_ || step <= kSettling)
    return std::nullopt;
  const bool per_layer = config_.scope == config::ThresholdScope::kLayer;
  const double mean =
      std::accumulate(active_L.begin(), active_L.end(), 0.0) / static_cast<double>(active_L.size());
  const std::vector<double> active_C = per_layer ? active_L : std::vector<double>{mean};
  last_C_.resize(active_C.size());
  const std::vector<double> targets = config::experts_at(config_, step - 1, steps_);
  for (size_t c = 0; c < active_C.size(); ++c) {
    std::deque<double>& last = last_C_[c];
    last.push_back(active_C[c]);
    if (last.size() > kSteps) last.pop_front();
    const double target = targets[targets.size() > 1 ? c : 0];
    double off = 0;
    for (const double active : last) off += std::abs(active - target);
    if (last.size() < kSteps || off / static_cast<double>(last.size()) <= kMostOff * target) continue;
    warned_ = true;
    const auto [least, most] = std::ranges::minmax_element(last);
    return format(
        "the controller misses its target: %.1f to %.1f active experts per token in the last %zu steps%s%s, "
        "target %.3g; set routing.controller: solve",
        *least, *most, kSteps, per_layer ? " of layer " : "", per_layer ? std::to_string(c).c_str() : "",
        target);
  }
  return std::nullopt;
}

}  // namespace dtopp::moe
