#include "dtopp/eval/token_counts.h"

#include <numeric>

#include "dtopp/base/errors.h"
#include "dtopp/base/random.h"
#include "dtopp/moe/routers/counted.h"

namespace dtopp::eval {
namespace {

// Counts the experts of each token and layer.
class CountsOfTokens final : public WindowObserver {
 public:
  CountsOfTokens(int64_t layers, int64_t tokens) : counts_LN_(at::zeros({layers, tokens}, at::kDouble)) {}

  void add(const TextWindows& windows, const models::HiddenStates& states,
           const at::Tensor& /*log_probs_T*/) override {
    for (size_t layer = 0; layer < states.routing.size(); ++layer) {
      const at::Tensor chosen_T = states.routing[layer].gates_TE.ne(0).sum(-1);
      counts_LN_[static_cast<int64_t>(layer)]
          .narrow(0, static_cast<int64_t>(windows.offset), chosen_T.numel())
          .copy_(chosen_T);
    }
  }
  const at::Tensor& counts_LN() const { return counts_LN_; }

 private:
  at::Tensor counts_LN_;  // f64, whole numbers
};

// The columns of the tokens that the model reads, divided as the rule demands.
std::vector<std::vector<int64_t>> groups_of(const std::vector<TextSegment>& segments, CountsRule rule,
                                            int64_t sequence_length) {
  std::vector<std::vector<int64_t>> groups;
  for (const TextSegment& segment : segments) {
    const bool is_new =
        groups.empty() || rule == CountsRule::kPermutedSource || rule == CountsRule::kPermutedWindow;
    if (is_new) groups.emplace_back();
    for (uint64_t token = segment.begin; token < segment.last; ++token) {
      const bool begins_window = (token - segment.begin) % static_cast<uint64_t>(sequence_length) == 0;
      if (rule == CountsRule::kPermutedWindow && begins_window && token > segment.begin)
        groups.emplace_back();
      groups.back().push_back(static_cast<int64_t>(token));
    }
  }
  return groups;
}

// Gives every (layer, token) the mean, rounded so that the sum stays.
void make_uniform(const at::Tensor& counts_LN, const std::vector<std::vector<int64_t>>& groups,
                  const RandomStream& stream) {
  const int64_t layers = counts_LN.size(0);
  auto counts = counts_LN.accessor<int64_t, 2>();
  uint64_t places = 0;
  int64_t total = 0;
  for (const auto& group : groups) {
    places += group.size() * static_cast<uint64_t>(layers);
    for (int64_t layer = 0; layer < layers; ++layer)
      for (const int64_t token : group) total += counts[layer][token];
  }
  if (places == 0) return;
  const int64_t floor = total / static_cast<int64_t>(places);
  const uint64_t raised = static_cast<uint64_t>(total) % places;
  const Permutation order(stream, /*epoch=*/0, places);
  uint64_t place = 0;
  for (int64_t layer = 0; layer < layers; ++layer)
    for (const auto& group : groups)
      for (const int64_t token : group) counts[layer][token] = floor + (order(place++) < raised ? 1 : 0);
}

// Experts are ordered by their probability, which these methods also use for the gates.
void require_counted(const config::RunConfig& config) {
  if (config.model.is_dense()) throw UsageError("--counts: the model is dense; use a model with experts");
  const config::RoutingMethod method = config.routing.method;
  const bool by_probability = config::has_threshold(method) || method == config::RoutingMethod::kTopK;
  if (!by_probability || config.model.zero_experts > 0)
    throw UsageError(
        "--counts: needs experts with probabilities and no zero experts; use routing.method top_k, "
        "top_p, dtop_p or dtop_p_bias");
}

}  // namespace

const std::vector<std::pair<std::string, CountsRule>>& counts_rules() {
  static const std::vector<std::pair<std::string, CountsRule>> rules = {
      {"as-is", CountsRule::kAsIs},
      {"uniform", CountsRule::kUniform},
      {"permuted:layer", CountsRule::kPermutedLayer},
      {"permuted:source", CountsRule::kPermutedSource},
      {"permuted:window", CountsRule::kPermutedWindow}};
  return rules;
}

at::Tensor redistribute(const at::Tensor& counts_LN, CountsRule rule,
                        const std::vector<std::vector<int64_t>>& groups, uint64_t seed) {
  at::Tensor result_LN = counts_LN.clone();
  if (rule == CountsRule::kAsIs) return result_LN;
  const RandomStream stream(seed, "counts of tokens");
  if (rule == CountsRule::kUniform) {
    make_uniform(result_LN, groups, stream);
    return result_LN;
  }
  const auto from = counts_LN.accessor<int64_t, 2>();
  auto to = result_LN.accessor<int64_t, 2>();
  uint64_t epoch = 0;
  for (int64_t layer = 0; layer < counts_LN.size(0); ++layer) {
    for (const auto& group : groups) {
      const Permutation order(stream, epoch++, group.size());
      for (size_t i = 0; i < group.size(); ++i) to[layer][group[i]] = from[layer][group[order(i)]];
    }
  }
  return result_LN;
}

TokenCounts::TokenCounts(const inference::InferenceModel& model, const EvaluationText& text, CountsRule rule,
                         uint64_t seed, int64_t batch_size, distributed::Collectives& ranks,
                         inference::Watch& watch)
    : config_(model.config), device_(model.device()) {
  require_counted(model.config);
  CountsOfTokens own(model.config.model.num_layers, static_cast<int64_t>(text.size()));
  measure_perplexity(model, text, batch_size, ranks, watch, {.observer = &own});
  ranks.all_reduce_sum(own.counts_LN(), "counts").wait();
  const auto groups = groups_of(text.segments(), rule, model.config.model.sequence_length);
  counts_LN_ = redistribute(own.counts_LN().to(at::kLong), rule, groups, seed);
}

std::shared_ptr<moe::Router> TokenCounts::for_tokens(uint64_t first, int64_t count) const {
  return std::make_shared<moe::CountedRouter>(
      config_, counts_LN_.narrow(1, static_cast<int64_t>(first), count), device_);
}

}  // namespace dtopp::eval
