#include "dtopp/convert/huggingface_config.h"

#include <nlohmann/json.hpp>

#include "dtopp/base/format.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/json.h"

namespace dtopp::convert {
namespace {

using nlohmann::ordered_json;

ordered_json token_or_null(std::optional<int64_t> token) {
  return token ? ordered_json(*token) : ordered_json();
}

// The fields that all classes share.
ordered_json shape_of(const config::ModelConfig& model, std::optional<int64_t> end_of_text,
                      HuggingFaceClass as) {
  const HuggingFaceFamily& family = family_of(as);
  return {{"architectures", {family.architecture}},
          {"model_type", enum_name(as)},
          {"dtype", "float32"},
          {"vocab_size", model.vocab_size},
          {"hidden_size", model.hidden_size},
          {family.ffn_key, model.ffn_hidden_size},
          {"num_hidden_layers", model.num_layers},
          {"num_attention_heads", model.num_heads},
          {"num_key_value_heads", model.num_kv_heads()},
          {"head_dim", model.head_size()},
          {family.experts_key, model.num_experts},
          {"max_position_embeddings", model.sequence_length},
          {"hidden_act", "silu"},
          {"rms_norm_eps", model.norm_eps},
          {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", model.rope_base}}},
          {"initializer_range", model.init_std},
          {"tie_word_embeddings", model.tie_embeddings},
          {"bos_token_id", token_or_null(end_of_text)},
          {"eos_token_id", token_or_null(end_of_text)},
          {"pad_token_id", nullptr},
          {"use_cache", true}};
}

ordered_json dtopp_router(const config::RunConfig& config, const RouterNumbers& router) {
  const config::RoutingConfig& routing = config.routing;
  const auto& targets = routing.experts;
  // With zero experts, top_k_bias takes max_experts of all experts, and `experts` is their mean without them.
  const bool takes_zero_experts =
      routing.method == config::RoutingMethod::kTopKBias && config.model.zero_experts > 0;
  ordered_json json = {
      {"router_method", enum_name(routing.method)},
      {"router_top_k", takes_zero_experts ? routing.max_experts : config::top_k_of(routing)},
      {"router_scope", enum_name(routing.scope)},
      {"router_target_experts", targets.size() == 1 ? ordered_json(targets[0]) : ordered_json(targets)},
      {"router_normalization", enum_name(routing.normalization)},
      {"router_expert_normalization", enum_name(routing.expert_normalization)},
      {"router_renormalize", routing.renormalize == config::Renormalize::kL2
                                 ? ordered_json("l2")
                                 : ordered_json(routing.renormalize == config::Renormalize::kSum)},
      {"router_gate_scale", routing.gate_scale},
      {"router_max_experts", routing.max_experts}};
  if (config::has_threshold(routing.method)) {
    std::vector<double> by_layer = router.thresholds;
    by_layer.resize(static_cast<size_t>(config.model.num_layers), by_layer.at(0));
    json["router_thresholds"] = by_layer;
  }
  if (routing.method == config::RoutingMethod::kExpertThreshold)
    json.update({{"router_cut_decay", routing.cut_decay}, {"router_cut_steps", router.cut_steps}});
  if (routing.expert_normalization != config::ExpertNormalization::kNone)
    json["router_normalization_steps"] = router.normalization_steps;
  return json;
}

// The fields of the classes that transformers includes. A field that dtopp's models do not have is off.
ordered_json family_of_transformers(const config::RunConfig& config, HuggingFaceClass as) {
  const config::ModelConfig& model = config.model;
  ordered_json json = {{"num_experts_per_tok", config::top_k_of(config.routing)},
                       {"norm_topk_prob", config.routing.renormalize == config::Renormalize::kSum},
                       {"attention_dropout", 0.0},
                       {"output_router_logits", false},
                       {"router_aux_loss_coef", config.loss.load_balance}};
  const ordered_json window =
      model.attention_window > 0 ? ordered_json(model.attention_window) : ordered_json();
  switch (as) {
    case HuggingFaceClass::kDtopp:
      break;
    case HuggingFaceClass::kOlmoe:
      json.update({{"attention_bias", false}, {"clip_qkv", nullptr}});
      break;
    case HuggingFaceClass::kMixtral:
      json.erase("norm_topk_prob");
      json.update({{"sliding_window", window}, {"router_jitter_noise", 0.0}});
      break;
    case HuggingFaceClass::kQwen2Moe:
      json.update({{"qkv_bias", model.qkv_bias},
                   {"shared_expert_intermediate_size", model.shared_ffn_hidden_size()},
                   {"use_sliding_window", false},
                   {"decoder_sparse_step", 1},
                   {"mlp_only_layers", ordered_json::array()}});
      break;
    case HuggingFaceClass::kQwen3Moe:
      json.update({{"attention_bias", false},
                   {"use_sliding_window", !window.is_null()},
                   {"sliding_window", window},
                   {"decoder_sparse_step", 1},
                   {"mlp_only_layers", ordered_json::array()}});
      break;
  }
  return json;
}

ordered_json dtopp_class(const config::RunConfig& config, const RouterNumbers& router) {
  const config::ModelConfig& model = config.model;
  ordered_json json = {{"auto_map",
                        {{"AutoConfig", "configuration_dtopp.DtoppConfig"},
                         {"AutoModel", "modeling_dtopp.DtoppModel"},
                         {"AutoModelForCausalLM", "modeling_dtopp.DtoppForCausalLM"}}},
                       {"zero_experts", model.zero_experts},
                       {"zero_kind", enum_name(model.zero_kind)},
                       {"shared_experts", model.shared_experts},
                       {"shared_gate", model.shared_gate},
                       {"qk_norm", enum_name(model.qk_norm)},
                       {"qkv_bias", model.qkv_bias},
                       {"norm", enum_name(model.norm)},
                       {"attend_across_documents", model.attend_across_documents},
                       {"end_of_text", config.data.end_of_text}};
  if (!model.is_dense()) json.update(dtopp_router(config, router));
  return json;
}

// Requires what the classes that transformers includes have in common, and what each of them has.
void require_transformers_family(const config::RunConfig& config, HuggingFaceClass as,
                                 const std::string& name) {
  using enum HuggingFaceClass;
  const auto require = [&](bool fits, const char* key, const std::string& value) {
    if (!fits) throw UsageError(name + ": " + key + " must be " + value);
  };
  const config::ModelConfig& model = config.model;
  const config::RoutingConfig& routing = config.routing;
  const config::QkNorm qk_norm = family_of(as).qk_norm;
  const bool is_shared = as == kQwen2Moe;
  require(!model.is_dense(), "model.num_experts", "more than 1");
  require(model.qk_norm == qk_norm, "model.qk_norm", enum_name(qk_norm));
  require(as == kQwen2Moe || !model.qkv_bias, "model.qkv_bias", "false");
  require((model.shared_experts > 0) == is_shared, "model.shared_experts", is_shared ? "above 0" : "0");
  require(model.shared_gate == is_shared, "model.shared_gate", "true");
  require(as != kOlmoe || model.head_size() * model.num_heads == model.hidden_size, "model.head_size",
          "hidden_size / num_heads");
  require(model.norm == config::NormType::kRms, "model.norm", "rms");
  require(as == kMixtral || as == kQwen3Moe || model.attention_window == 0, "model.attention_window", "0");
  require(model.attend_across_documents, "model.attend_across_documents", "true");
  require(routing.method == config::RoutingMethod::kTopK, "routing.method", "top_k");
  require(routing.top_k_by_source.empty(), "routing.top_k_by_source", "{}");
  require(routing.expert_normalization == config::ExpertNormalization::kNone, "routing.expert_normalization",
          "none");
  require(routing.normalization == config::Normalization::kNone, "routing.normalization", "none");
  require(routing.renormalize != config::Renormalize::kL2, "routing.renormalize", "true or false");
  require(as != kMixtral || routing.renormalize == config::Renormalize::kSum, "routing.renormalize", "true");
}

}  // namespace

void require_fitting(const config::RunConfig& config, HuggingFaceClass as, const std::string& name) {
  if (as != HuggingFaceClass::kDtopp) return require_transformers_family(config, as, name);
  if (config.model.attention_window > 0)
    throw UsageError("model.attention_window: dtopp's class attends to all earlier tokens; it must be 0");
}

std::string huggingface_config(const config::RunConfig& config, const RouterNumbers& router,
                               std::optional<int64_t> end_of_text, HuggingFaceClass as) {
  ordered_json json = shape_of(config.model, end_of_text, as);
  json.update(as == HuggingFaceClass::kDtopp ? dtopp_class(config, router)
                                             : family_of_transformers(config, as));
  return dump_json(json, 2) + "\n";
}

}  // namespace dtopp::convert
