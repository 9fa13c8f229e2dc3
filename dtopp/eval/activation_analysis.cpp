#include "dtopp/eval/activation_analysis.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"

namespace dtopp::eval {
namespace {

using nlohmann::ordered_json;

// Returns the active experts per token and layer, f64 [T, L] on the host.
at::Tensor active_experts(const models::HiddenStates& states) {
  std::vector<at::Tensor> layers;
  for (const ops::RouteOutput& routing : states.routing)
    layers.push_back(routing.gates_TE.ne(0).sum(-1).to(at::kDouble));
  return at::stack(layers, 1).cpu();
}

// Returns the kind of each routed token of a batch of windows, int64 [T], in the order of the batch.
at::Tensor kinds_of(const tasks::TokenKinds& kinds, const TextWindows& windows) {
  const int64_t count = windows.ids_BL.size(0), length = windows.ids_BL.size(1);
  at::Tensor out = at::empty({count * length}, at::kLong);
  auto* kind = out.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    const auto* from = kinds.kind.data() + windows.offset + static_cast<uint64_t>(i) * windows.stride;
    kind = std::copy_n(from, length, kind);
  }
  return out;
}

class KindCounter final : public WindowObserver {
 public:
  KindCounter(std::vector<KindActivations>& by_kind, TokenLossObserver& losses)
      : by_kind_(by_kind), losses_(losses) {}

  void add(const TextWindows& windows, const models::HiddenStates& states,
           const at::Tensor& log_probs_T) override {
    losses_.add(windows, states, log_probs_T);
    const at::Tensor active_TL = active_experts(states);
    for (KindActivations& one : by_kind_) {
      const at::Tensor kind_T = kinds_of(one.kinds, windows);
      one.tokens_G.index_add_(0, kind_T, at::ones_like(kind_T));
      one.sums_GL.index_add_(0, kind_T, active_TL);
      one.squares_G.index_add_(0, kind_T, active_TL.square().sum(1));
    }
  }

 private:
  std::vector<KindActivations>& by_kind_;
  TokenLossObserver& losses_;
};

struct KindSummary {
  int64_t tokens;
  double mean, deviation;  // over tokens and layers
};

KindSummary summarize(const KindActivations& activations, int64_t kind) {
  const int64_t tokens = activations.tokens_G[kind].item<int64_t>();
  const auto pairs = static_cast<double>(tokens * activations.sums_GL.size(1));
  const double mean = activations.sums_GL[kind].sum().item<double>() / pairs;
  const double square = activations.squares_G[kind].item<double>() / pairs;
  return {tokens, mean, std::sqrt(std::max(0.0, square - mean * mean))};
}

template <typename Number>
std::vector<Number> values(const at::Tensor& tensor) {
  const at::Tensor host = tensor.cpu().contiguous();
  const auto* data = host.const_data_ptr<Number>();
  return {data, data + host.numel()};
}

ordered_json layer_json(const moe::ActivationStatistics& statistics, int64_t layer,
                        const inference::InferenceModel& model) {
  const moe::ActivationSummary summary = statistics.summary(layer);
  const at::Tensor counts_E = statistics.tokens_per_expert()[layer];
  const auto tokens = static_cast<double>(statistics.tokens());
  ordered_json json = {{"layer", layer},
                       {"mean", summary.mean},
                       {"deviation", summary.deviation},
                       {"imbalance", summary.imbalance},
                       {"dead_experts", summary.dead_experts},
                       {"histogram", values<int64_t>(statistics.histogram()[layer])},
                       {"expert_load", values<double>(counts_E.to(at::kDouble) / tokens)}};
  const std::vector<double> thresholds = model.routing.router->metric("threshold");
  if (!thresholds.empty()) json["threshold"] = thresholds[thresholds.size() > 1 ? layer : 0];
  const at::Tensor scale = model.model.block(layer).mlp.experts.router_scale;
  if (scale.defined()) json["scale"] = scale.item<double>();
  return json;
}

}  // namespace

ActivationAnalysis analyze_activations(const inference::InferenceModel& model, const EvaluationText& text,
                                       std::vector<tasks::TokenKinds> kinds, int64_t batch_size,
                                       distributed::Collectives& ranks, inference::Watch& watch) {
  if (model.config.model.is_dense())
    throw UsageError("evaluate experts: the model is dense; use a model with experts");
  ActivationAnalysis analysis;
  const int64_t layers = model.config.model.num_layers;
  for (tasks::TokenKinds& one : kinds) {
    const auto count = static_cast<int64_t>(one.names.size());
    analysis.by_kind.push_back({std::move(one), at::zeros({count}, at::kLong),
                                at::zeros({count, layers}, at::kDouble), at::zeros({count}, at::kDouble)});
  }
  TokenLossObserver losses(text, layers, model.config.model.sequence_length);
  KindCounter counter(analysis.by_kind, losses);
  analysis.perplexity = measure_perplexity(model, text, batch_size, ranks, watch, {.observer = &counter});
  analysis.nll_by_experts = losses.result(ranks);
  for (KindActivations& one : analysis.by_kind) {
    const at::Tensor tokens_G = one.tokens_G.to(at::kDouble);
    for (const at::Tensor& sums : {tokens_G, one.sums_GL, one.squares_G})  // all are whole numbers
      ranks.all_reduce_sum(sums, "kinds").wait();
    one.tokens_G = tokens_G.to(at::kLong);
  }
  return analysis;
}

ordered_json to_json(const ActivationAnalysis& analysis, const inference::InferenceModel& model) {
  const moe::ActivationStatistics& statistics = analysis.perplexity.activations;
  const moe::ActivationSummary all = statistics.summary();
  ordered_json json = {{"tokens", analysis.perplexity.tokens},
                       {"nll", analysis.perplexity.nll},
                       {"num_experts", model.config.model.num_experts},
                       {"mean", all.mean},
                       {"deviation", all.deviation},
                       {"layers", ordered_json::array()},
                       {"tokens_by", ordered_json::object()},
                       {"nll_by_experts", to_json(analysis.nll_by_experts)}};
  for (int64_t layer = 0; layer < statistics.num_layers(); ++layer)
    json["layers"].push_back(layer_json(statistics, layer, model));
  for (const KindActivations& one : analysis.by_kind) {
    ordered_json& kinds = json["tokens_by"][one.kinds.by] = ordered_json::array();
    for (int64_t kind = 0; kind < one.tokens_G.size(0); ++kind) {
      const KindSummary summary = summarize(one, kind);
      if (summary.tokens == 0) continue;
      kinds.push_back(
          {{"kind", one.kinds.names[kind]},
           {"tokens", summary.tokens},
           {"mean", summary.mean},
           {"deviation", summary.deviation},
           {"layer_means", values<double>(one.sums_GL[kind] / static_cast<double>(summary.tokens))}});
    }
  }
  return json;
}

std::string format_table(const ActivationAnalysis& analysis) {
  std::string table;
  const moe::ActivationStatistics& statistics = analysis.perplexity.activations;
  table += format("%-28s %8s %10s %10s %6s\n", "layer", "experts", "deviation", "imbalance", "dead");
  for (int64_t layer = 0; layer < statistics.num_layers(); ++layer) {
    const moe::ActivationSummary one = statistics.summary(layer);
    table += format("%-28lld %8.3f %10.3f %10.2f %6lld\n", static_cast<long long>(layer), one.mean,
                    one.deviation, one.imbalance, static_cast<long long>(one.dead_experts));
  }
  const moe::ActivationSummary all = statistics.summary();
  table += format("%-28s %8.3f %10.3f\n", "all", all.mean, all.deviation);
  for (const KindActivations& one : analysis.by_kind) {
    table += format("\n%-28s %8s %10s %10s\n", one.kinds.by.c_str(), "experts", "deviation", "tokens");
    for (int64_t kind = 0; kind < one.tokens_G.size(0); ++kind) {
      const KindSummary summary = summarize(one, kind);
      if (summary.tokens == 0) continue;
      table += format("%-28s %8.3f %10.3f %10lld\n", one.kinds.names[kind].c_str(), summary.mean,
                      summary.deviation, static_cast<long long>(summary.tokens));
    }
  }
  return table + format_table(analysis.nll_by_experts);
}

}  // namespace dtopp::eval
