#include "dtopp/moe/activation_statistics.h"

#include <algorithm>
#include <cmath>

namespace dtopp {
namespace {

struct Moments {
  int64_t tokens = 0, sum = 0, squares = 0;

  void add(const at::Tensor& histogram) {
    const at::Tensor host = histogram.cpu();
    const auto* count = host.const_data_ptr<int64_t>();
    for (int64_t n = 0; n < host.numel(); ++n) {
      tokens += count[n];
      sum += n * count[n];
      squares += n * n * count[n];
    }
  }
  double mean() const { return tokens == 0 ? 0.0 : static_cast<double>(sum) / static_cast<double>(tokens); }
  double deviation() const {
    if (tokens == 0) return 0.0;
    return std::sqrt(
        std::max(0.0, static_cast<double>(squares) / static_cast<double>(tokens) - mean() * mean()));
  }
};

}  // namespace

void ActivationStatistics::add(int64_t layer, const at::Tensor& expert_counts_E,
                               const at::Tensor& active_histogram) {
  if (counts_E_[layer].defined()) {
    counts_E_[layer].add_(expert_counts_E);
    histogram_[layer].add_(active_histogram);
  } else {
    counts_E_[layer] = expert_counts_E.clone();
    histogram_[layer] = active_histogram.clone();
  }
}

void ActivationStatistics::add(const ActivationStatistics& other) {
  for (int64_t layer = 0; layer < num_layers(); ++layer) {
    if (other.counts_E_[layer].defined()) add(layer, other.counts_E_[layer], other.histogram_[layer]);
  }
}

int64_t ActivationStatistics::tokens() const {
  if (histogram_.empty() || !histogram_[0].defined()) return 0;
  return histogram_[0].sum().item<int64_t>();
}

std::vector<int64_t> ActivationStatistics::selected() const {
  std::vector<int64_t> pairs;
  for (const at::Tensor& counts_E : counts_E_)
    pairs.push_back(counts_E.defined() ? counts_E.sum().item<int64_t>() : 0);
  return pairs;
}

ActivationSummary ActivationStatistics::summary(int64_t layer) const {
  if (!histogram_[layer].defined()) return {};
  Moments moments;
  moments.add(histogram_[layer]);
  const at::Tensor counts_E = counts_E_[layer].cpu();
  const double mean_count = counts_E.to(at::kDouble).mean().item<double>();
  return {moments.mean(), moments.deviation(),
          mean_count == 0 ? 0.0 : counts_E.max().item<double>() / mean_count,
          (counts_E == 0).sum().item<int64_t>()};
}

ActivationSummary ActivationStatistics::summary() const {
  Moments moments;
  ActivationSummary all;
  for (int64_t layer = 0; layer < num_layers(); ++layer) {
    if (!histogram_[layer].defined()) continue;
    moments.add(histogram_[layer]);
    const ActivationSummary one = summary(layer);
    all.imbalance += one.imbalance / static_cast<double>(num_layers());
    all.dead_experts += one.dead_experts;
  }
  all.mean = moments.mean();
  all.deviation = moments.deviation();
  return all;
}

}  // namespace dtopp
