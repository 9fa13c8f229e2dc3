// Defines the `routing` section: how each token selects its experts. docs/reference/configuration.md explains
// each key.
#pragma once

#include <array>
#include <numeric>

#include "dtopp/config/config_tree.h"

namespace dtopp::config {

struct ModelConfig;

enum class RoutingMethod {
  kTopK,             // the K likeliest experts
  kTopKBias,         // K experts; biases balance their load
  kTopP,             // the likeliest experts until their probabilities reach p
  kDTopP,            // the same; a controller moves p
  kDTopPBias,        // as many; biases decide which
  kRelu,             // the experts with a positive logit
  kExpertThreshold,  // the experts whose own threshold the logit reaches
  kHash,             // K experts by token id
};
enum class ThresholdScope { kGlobal, kLayer };         // layers that share a threshold: all, or none
enum class Normalization { kNone, kFixed, kDynamic };  // of the router's logits (ops/route/route.h)
enum class ExpertNormalization { kNone, kRunning };    // of an expert's logits (moe/expert_normalization.h)
enum class Renormalize { kNo, kSum, kL2 };             // what is 1 of a token's gates
enum class BiasRule { kSign, kQuantile };              // how a bias moves (moe/expert_bias.h)
enum class Controller { kPi, kSolve };                 // the law that moves p after a step
enum class ScheduleShape { kLinear, kStep };           // of the budget between the points of a schedule
enum class RouterZOn { kRaw, kNormalized };            // the logits that the router z-loss uses

constexpr auto enum_names(RoutingMethod) {
  return std::to_array<std::string_view>(
      {"top_k", "top_k_bias", "top_p", "dtop_p", "dtop_p_bias", "relu", "expert_threshold", "hash"});
}
constexpr auto enum_names(ThresholdScope) { return std::to_array<std::string_view>({"global", "layer"}); }
constexpr auto enum_names(Normalization) {
  return std::to_array<std::string_view>({"none", "fixed", "dynamic"});
}
constexpr auto enum_names(ExpertNormalization) {
  return std::to_array<std::string_view>({"none", "running"});
}
constexpr auto enum_names(Renormalize) { return std::to_array<std::string_view>({"false", "true", "l2"}); }
constexpr auto enum_names(BiasRule) { return std::to_array<std::string_view>({"sign", "quantile"}); }
constexpr auto enum_names(Controller) { return std::to_array<std::string_view>({"pi", "solve"}); }
constexpr auto enum_names(ScheduleShape) { return std::to_array<std::string_view>({"linear", "step"}); }
constexpr auto enum_names(RouterZOn) { return std::to_array<std::string_view>({"raw", "normalized"}); }

// The number of experts of the tokens of one training source.
struct SourceExperts {
  std::string source;
  int64_t experts = 0;

  bool operator==(const SourceExperts&) const = default;
};
void read_value(const ConfigNode& node, const std::string& key, std::vector<SourceExperts>& value);
std::string print_value(const std::vector<SourceExperts>& value);

struct RoutingConfig {
  RoutingMethod method = RoutingMethod::kDTopP;
  // Experts per token. top_k, top_k_bias, hash: K. dtop_p: the target T; one value, or one per layer if scope
  // is layer. top_p: the number that `dtopp plan` assumes.
  std::vector<double> experts = {8.0};
  // A budget that changes: at schedule_at[i], a share of training.steps, the mean of `experts` over layers is
  // schedule[i]. `experts` is the budget at the end. Empty: it is constant.
  std::vector<double> schedule, schedule_at;
  ScheduleShape schedule_shape = ScheduleShape::kLinear;
  BiasRule bias_rule = BiasRule::kSign;  // top_k_bias, dtop_p_bias
  double bias_rate = 1e-3;               // sign: change of a bias per step
  double bias_until = 1.0;               // share of training.steps after which biases stay
  double gate_scale = 1.0;               // top_k_bias: the sum of a token's gates
  double lambda_0 = 1e-8;                // relu: the first weight of its loss
  double lambda_factor = 1.2;            // relu: change of the weight per step
  double cut_decay = 0.99;               // expert_threshold: decay of the thresholds' moving average
  double threshold = 0.25;               // top_p: p; dtop_p, dtop_p_bias: p_0
  ThresholdScope scope = ThresholdScope::kGlobal;
  Controller controller = Controller::kPi;
  double kp = 0.1;          // pi: K_pro of Eq. (6)
  double ki = 0.1;          // pi: K_int of Eq. (6)
  bool anti_windup = true;  // pi: the sum skips errors that push p beyond a bound
  Normalization normalization = Normalization::kDynamic;
  ExpertNormalization expert_normalization = ExpertNormalization::kNone;
  // A token's gates over its selected experts: P, P / sum P, or P / sqrt(sum P^2).
  Renormalize renormalize = Renormalize::kSum;
  // top_k: K by the source of a sample, for studies of what an allocation by source is worth. Such a model
  // can only be trained and validated, because other text has no source. Empty: the same K for all.
  std::vector<SourceExperts> top_k_by_source{};
  // In the first hash_layers layers a token's id selects its experts, as many as routing.experts
  // (moe/hash.cpp).
  int64_t hash_layers = 0;
  int64_t max_experts = 0;  // upper limit of experts per token, zero experts included; 0: none
};

void visit_fields(SectionOf<RoutingConfig> auto& config, auto&& field) {
  field("method", config.method);
  field("experts", config.experts);
  field("schedule", config.schedule);
  field("schedule_at", config.schedule_at);
  field("schedule_shape", config.schedule_shape);
  field("bias_rule", config.bias_rule);
  field("bias_rate", config.bias_rate);
  field("bias_until", config.bias_until);
  field("gate_scale", config.gate_scale);
  field("lambda_0", config.lambda_0);
  field("lambda_factor", config.lambda_factor);
  field("cut_decay", config.cut_decay);
  field("threshold", config.threshold);
  field("scope", config.scope);
  field("controller", config.controller);
  field("kp", config.kp);
  field("ki", config.ki);
  field("anti_windup", config.anti_windup);
  field("normalization", config.normalization);
  field("expert_normalization", config.expert_normalization);
  field("renormalize", config.renormalize);
  field("hash_layers", config.hash_layers);
  field("max_experts", config.max_experts);
  field("top_k_by_source", config.top_k_by_source);
}

// Whether a ThresholdController moves the threshold p.
inline bool has_controller(RoutingMethod method) {
  return method == RoutingMethod::kDTopP || method == RoutingMethod::kDTopPBias;
}
// Whether experts join until their probabilities add up to a threshold p.
inline bool has_threshold(RoutingMethod method) {
  return method == RoutingMethod::kTopP || has_controller(method);
}
// Whether a token may select no expert.
inline bool may_select_none(RoutingMethod method) {
  return method == RoutingMethod::kRelu || method == RoutingMethod::kExpertThreshold;
}
// Whether the number of experts varies and its mean is held at the target T.
inline bool holds_target(RoutingMethod method) { return has_controller(method) || may_select_none(method); }

// Whether a router matrix computes logits. Without one, the token's id selects its experts.
inline bool has_logits(RoutingMethod method) { return method != RoutingMethod::kHash; }

// The same for one layer.
inline bool has_router(const RoutingConfig& config, int64_t layer) {
  return has_logits(config.method) && layer >= config.hash_layers;
}

// K of Top-k, and of layers that route by token id. Requires a configuration that validate() accepts.
inline int64_t top_k_of(const RoutingConfig& config) { return static_cast<int64_t>(config.experts.at(0)); }

// The mean number of experts per token over layers: K of Top-k, or T.
inline double mean_experts(const RoutingConfig& config) {
  return std::accumulate(config.experts.begin(), config.experts.end(), 0.0) /
         static_cast<double>(config.experts.size());
}

// The least and the largest mean over layers that a threshold can reach. Layers by token id keep their K.
std::pair<double, double> reachable_experts(const RoutingConfig& config, const ModelConfig& model);

// The budget of a run with training.steps `steps` at its optimizer step `step`, which counts from 0: mean
// over layers, and per layer in the form of RoutingConfig::experts.
double mean_experts_at(const RoutingConfig& config, int64_t step, int64_t steps);
std::vector<double> experts_at(const RoutingConfig& config, int64_t step, int64_t steps);
// The mean of the budget over the steps of a run, and its largest value; means over layers.
double mean_experts_of_run(const RoutingConfig& config);
double most_experts_of_run(const RoutingConfig& config);

// Throws:        UsageError that names the key, if a value is impossible for the model (experts outside [1,
//                num_experts], threshold outside (0, 1), a list of the wrong length, …)
void validate(const RoutingConfig& config, const ModelConfig& model);

}  // namespace dtopp::config
