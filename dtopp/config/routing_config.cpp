#include "dtopp/config/routing_config.h"

#include <cmath>
#include <functional>

#include "dtopp/base/format.h"
#include "dtopp/config/config.h"
#include "dtopp/config/model_config.h"

namespace dtopp::config {
namespace {

std::string text_of(double value) { return detail::print_value(value); }

// Whether every token takes the same number of experts.
bool has_whole_experts(const RoutingConfig& config, const ModelConfig& model) {
  using enum RoutingMethod;
  return (config.method == kTopK || config.method == kTopKBias || config.method == kHash) &&
         model.zero_experts == 0;
}

void validate_number(const char* key, double experts, const RoutingConfig& config, const ModelConfig& model) {
  const bool may_take_none = model.zero_experts > 0;  // the number is a mean
  if (!((experts >= 1 || (may_take_none && experts > 0)) &&
        experts <= static_cast<double>(model.num_experts)))
    throw InvalidValue(key, "must lie in ", (may_take_none ? "(0" : "[1"), ", ", model.num_experts,
                       "] (model.num_experts), is ", text_of(experts));
  if (has_whole_experts(config, model) && experts != std::floor(experts))
    throw InvalidValue(key, "must be a whole number for top_k, is ", text_of(experts));
  if (config.max_experts > 0 && experts > static_cast<double>(config.max_experts))
    throw InvalidValue("routing.max_experts", config.max_experts, " is below ", key, " ", text_of(experts));
}

void validate_experts(const RoutingConfig& config, const ModelConfig& model) {
  const int64_t num_layers = model.num_layers;
  const auto count = std::ssize(config.experts);
  if (count == 0) throw InvalidValue("routing.experts", "is empty; give a number");
  if (count > 1 && !has_controller(config.method))
    throw InvalidValue("routing.experts", "a list needs routing.method: dtop_p");
  if (count > 1 && config.scope != ThresholdScope::kLayer)
    throw InvalidValue("routing.experts", "a list needs routing.scope: layer; one threshold has one target");
  if (count > 1 && count != num_layers)
    throw InvalidValue("routing.experts", "has ", count, " values for ", num_layers,
                       " layers (model.num_layers)");
  for (const double experts : config.experts) validate_number("routing.experts", experts, config, model);
}

bool rises_from_0_to_1(const std::vector<double>& shares) {
  return shares.front() == 0 && shares.back() == 1 &&
         std::ranges::adjacent_find(shares, std::greater_equal()) == shares.end();
}

void validate_schedule(const RoutingConfig& config, const ModelConfig& model) {
  const std::vector<double>&schedule = config.schedule, &at = config.schedule_at;
  if (schedule.empty() && at.empty()) return;
  if (config.method == RoutingMethod::kTopP)
    throw InvalidValue("routing.schedule", "top_p holds no budget; leave it out");
  if (!config.top_k_by_source.empty())
    throw InvalidValue("routing.schedule", "the experts follow routing.top_k_by_source; leave it out");
  if (schedule.size() != at.size() || schedule.size() < 2)
    throw InvalidValue("routing.schedule_at", "must have as many values as routing.schedule, at least 2");
  if (!rises_from_0_to_1(at))
    throw InvalidValue("routing.schedule_at", "must rise from 0.0 to 1.0, is ", detail::print_value(at));
  for (const double experts : schedule) validate_number("routing.schedule", experts, config, model);
  if (has_whole_experts(config, model) && config.schedule_shape == ScheduleShape::kLinear)
    throw InvalidValue("routing.schedule_shape", "must be step for ", enum_name(config.method),
                       ", whose number of experts is whole");
  if (mean_experts(config) != schedule.back())
    throw InvalidValue("routing.experts", "is ", text_of(mean_experts(config)),
                       ", but routing.schedule ends at ", text_of(schedule.back()), "; set both to the same");
}

void validate_zero_experts(const RoutingConfig& config) {
  if (config.method != RoutingMethod::kTopKBias && config.method != RoutingMethod::kDTopP)
    throw InvalidValue("model.zero_experts", "need routing.method: top_k_bias or dtop_p; set it to 0");
  if (config.bias_rule != BiasRule::kSign)
    throw InvalidValue("routing.bias_rule", "must be sign with model.zero_experts");
  if (config.method == RoutingMethod::kTopKBias &&
      !(static_cast<double>(config.max_experts) > config.experts.at(0)))
    throw InvalidValue(
        "routing.max_experts",
        "is the number of experts that a token takes with top_k_bias, zero experts included; it "
        "must exceed routing.experts ",
        text_of(config.experts[0]));
}

void validate_hash(const RoutingConfig& config, const ModelConfig& model) {
  if (model.type != ModelType::kLanguageModel)
    throw InvalidValue("routing.method",
                       "hash selects experts by token id, and only language models have ids");
  if (config.normalization != Normalization::kNone)
    throw InvalidValue("routing.normalization", "hash has no logits to normalize; set it to none");
  if (config.renormalize != Renormalize::kSum)
    throw InvalidValue("routing.renormalize", "hash has equal gates that sum to 1; set it to true");
}

void validate_hash_layers(const RoutingConfig& config, const ModelConfig& model) {
  if (config.hash_layers == 0) return;
  const auto refuse = [](const auto&... what) { throw InvalidValue("routing.hash_layers", what...); };
  if (config.hash_layers < 0 || config.hash_layers >= model.num_layers)
    refuse("must lie in [0, ", model.num_layers, ") (model.num_layers), is ", config.hash_layers);
  if (model.type != ModelType::kLanguageModel)
    refuse("needs a language model, whose tokens have ids; set it to 0");
  if (!has_logits(config.method) || may_select_none(config.method) || model.zero_experts > 0)
    refuse("needs top_k, top_p or dtop_p, with or without bias, and no zero experts; set it to 0");
  if (config.experts.size() != 1 || config.scope != ThresholdScope::kGlobal ||
      config.experts[0] != std::floor(config.experts[0]))
    refuse("needs routing.scope: global and a whole number of routing.experts; set it to 0");
  if (!config.schedule.empty() || !config.top_k_by_source.empty())
    refuse("needs a constant number of experts; set it to 0");
}

void validate_top_k_by_source(const RoutingConfig& config, const ModelConfig& model) {
  if (config.top_k_by_source.empty()) return;
  if (config.method != RoutingMethod::kTopK || model.type != ModelType::kLanguageModel)
    throw InvalidValue("routing.top_k_by_source", "needs a language model with routing.method: top_k");
  for (const SourceExperts& one : config.top_k_by_source) {
    if (one.experts < 1 || one.experts > model.num_experts)
      throw InvalidValue("routing.top_k_by_source", one.source, ": must lie in [1, ", model.num_experts,
                         "] (model.num_experts), is ", one.experts);
  }
}

// Methods that use the logits as they are, and have a gate of their own.
void validate_scores(const RoutingConfig& config, const ModelConfig& model) {
  const std::string method(enum_name(config.method));
  const bool is_sigmoid = config.method == RoutingMethod::kTopKBias && model.zero_experts == 0;
  if (!(config.gate_scale > 0)) throw InvalidValue("routing.gate_scale", "must be positive");
  if (!is_sigmoid && config.gate_scale != 1)
    throw InvalidValue("routing.gate_scale",
                       "needs routing.method: top_k_bias without zero experts; set it to 1");
  if (!is_sigmoid && !may_select_none(config.method)) return;
  if (config.normalization != Normalization::kNone)
    throw InvalidValue("routing.normalization", "must be none for ", method);
  if (is_sigmoid) return;
  if (config.renormalize != Renormalize::kNo)
    throw InvalidValue("routing.renormalize", "must be false for ", method);
  if (config.max_experts > 0) throw InvalidValue("routing.max_experts", "must be 0 for ", method);
}

}  // namespace

void read_value(const ConfigNode& node, const std::string& key, std::vector<SourceExperts>& value) {
  if (node.kind != ConfigNode::Kind::kMapping)
    detail::throw_wrong_type(node, key, "numbers of experts by source, such as {web: 2, code: 6}");
  std::vector<SourceExperts> result;
  for (size_t i = 0; i < node.keys.size(); ++i) {
    result.push_back({node.keys[i]});
    detail::read_value(node.items[i], key + "." + node.keys[i], result.back().experts);
  }
  value = std::move(result);
}

std::string print_value(const std::vector<SourceExperts>& value) {
  std::string out = "{";
  for (const SourceExperts& one : value) {
    out += (out.size() > 1 ? ", " : "") + detail::print_value(one.source) + ": " +
           detail::print_value(one.experts);
  }
  return out + "}";
}

std::pair<double, double> reachable_experts(const RoutingConfig& config, const ModelConfig& model) {
  const double by_id = static_cast<double>(config.hash_layers) / static_cast<double>(model.num_layers);
  const int64_t most =
      config.max_experts > 0 ? std::min(config.max_experts, model.num_experts) : model.num_experts;
  const double fixed = by_id * static_cast<double>(top_k_of(config));
  return {fixed + (model.zero_experts > 0 ? 0 : 1 - by_id), fixed + (1 - by_id) * static_cast<double>(most)};
}

double mean_experts_at(const RoutingConfig& config, int64_t step, int64_t steps) {
  if (config.schedule.empty()) return mean_experts(config);
  const double share = static_cast<double>(step) / static_cast<double>(steps);
  size_t next = 1;
  while (next + 1 < config.schedule_at.size() && config.schedule_at[next] <= share) ++next;
  if (share >= config.schedule_at[next]) return config.schedule[next];
  if (config.schedule_shape == ScheduleShape::kStep) return config.schedule[next - 1];
  const double begin = config.schedule_at[next - 1], end = config.schedule_at[next];
  return std::lerp(config.schedule[next - 1], config.schedule[next], (share - begin) / (end - begin));
}

std::vector<double> experts_at(const RoutingConfig& config, int64_t step, int64_t steps) {
  const double mean = mean_experts_at(config, step, steps);
  if (config.experts.size() == 1) return {mean};
  std::vector<double> by_layer = config.experts;
  for (double& experts : by_layer) experts *= mean / mean_experts(config);
  return by_layer;
}

double mean_experts_of_run(const RoutingConfig& config) {
  if (config.schedule.empty()) return mean_experts(config);
  const bool linear = config.schedule_shape == ScheduleShape::kLinear;
  double mean = 0;
  for (size_t i = 1; i < config.schedule.size(); ++i) {
    const double before = config.schedule[i - 1], after = linear ? config.schedule[i] : before;
    mean += (before + after) / 2 * (config.schedule_at[i] - config.schedule_at[i - 1]);
  }
  return mean;
}

double most_experts_of_run(const RoutingConfig& config) {
  double most = mean_experts(config);
  for (const double experts : config.schedule) most = std::max(most, experts);
  return most;
}

void validate(const RoutingConfig& config, const ModelConfig& model) {
  if (config.max_experts < 0 || config.max_experts > model.router_columns())
    throw InvalidValue("routing.max_experts", "must lie in [0, ", model.router_columns(),
                       "] (model.num_experts", (model.zero_experts > 0 ? " + zero_experts" : ""),
                       "; 0: no cap), is ", config.max_experts);
  if (!has_logits(config.method)) validate_hash(config, model);
  if (has_threshold(config.method)) require_threshold("routing.threshold", config.threshold);
  if (model.zero_experts > 0) validate_zero_experts(config);
  if (config.expert_normalization != ExpertNormalization::kNone &&
      config.normalization == Normalization::kNone)
    throw InvalidValue("routing.expert_normalization",
                       "needs routing.normalization: fixed or dynamic; set it to none");
  validate_top_k_by_source(config, model);
  validate_schedule(config, model);
  validate_hash_layers(config, model);
  if (!(config.bias_until >= 0 && config.bias_until <= 1))
    throw InvalidValue("routing.bias_until", "must lie in [0, 1], is ", text_of(config.bias_until));
  if (config.method == RoutingMethod::kTopP) return;
  validate_experts(config, model);
  validate_scores(config, model);
  if (config.method == RoutingMethod::kRelu) {
    if (!(config.lambda_0 > 0)) throw InvalidValue("routing.lambda_0", "must be positive");
    if (!(config.lambda_factor > 1)) throw InvalidValue("routing.lambda_factor", "must be above 1");
  }
  if (config.method == RoutingMethod::kExpertThreshold) require_share("routing.cut_decay", config.cut_decay);
  if (!has_controller(config.method)) return;
  require_not_negative("routing.kp", config.kp);
  require_not_negative("routing.ki", config.ki);
}

}  // namespace dtopp::config
