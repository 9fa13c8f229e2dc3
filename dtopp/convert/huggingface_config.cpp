#include "dtopp/convert/huggingface_config.h"

#include <nlohmann/json.hpp>

#include "dtopp/base/enum_name.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/json.h"

namespace dtopp::convert {
namespace {

using nlohmann::ordered_json;

ordered_json token_or_null(std::optional<int64_t> token) {
  return token ? ordered_json(*token) : ordered_json();
}

// The fields that both classes share.
ordered_json shape_of(const config::ModelConfig& model, std::optional<int64_t> end_of_text) {
  return {{"dtype", "float32"},
          {"vocab_size", model.vocab_size},
          {"hidden_size", model.hidden_size},
          {"intermediate_size", model.ffn_hidden_size},
          {"num_hidden_layers", model.num_layers},
          {"num_attention_heads", model.num_heads},
          {"num_key_value_heads", model.num_kv_heads()},
          {"head_dim", model.head_size()},
          {"num_experts", model.num_experts},
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
      {"router_renormalize", routing.renormalize},
      {"router_max_experts", routing.max_experts}};
  if (config::has_threshold(routing.method)) {
    std::vector<double> by_layer = router.thresholds;
    by_layer.resize(static_cast<size_t>(config.model.num_layers), by_layer.at(0));
    json["router_thresholds"] = by_layer;
  }
  if (routing.method == config::RoutingMethod::kExpertThreshold)
    json.update({{"router_cut_decay", routing.cut_decay}, {"router_cut_steps", router.cut_steps}});
  return json;
}

}  // namespace

void require_olmoe(const config::RunConfig& config) {
  const auto require = [](bool fits, const char* key, const char* value) {
    if (!fits) throw UsageError(std::string("--as olmoe: ") + key + " must be " + value);
  };
  const config::RoutingConfig& routing = config.routing;
  require(!config.model.is_dense(), "model.num_experts", "more than 1");
  require(config.model.shared_experts == 0, "model.shared_experts", "0");
  require(config.model.head_size() * config.model.num_heads == config.model.hidden_size, "model.head_size",
          "hidden_size / num_heads");
  require(config.model.qk_norm == config::QkNorm::kWhole, "model.qk_norm", "whole");
  require(!config.model.qkv_bias, "model.qkv_bias", "false");
  require(config.model.norm == config::NormType::kRms, "model.norm", "rms");
  require(config.model.attend_across_documents, "model.attend_across_documents", "true");
  require(routing.method == config::RoutingMethod::kTopK, "routing.method", "top_k");
  require(routing.top_k_by_source.empty(), "routing.top_k_by_source", "{}");
  require(routing.normalization == config::Normalization::kNone, "routing.normalization", "none");
}

std::string huggingface_config(const config::RunConfig& config, const RouterNumbers& router,
                               std::optional<int64_t> end_of_text, HuggingFaceClass as) {
  if (config.model.attention_window > 0)
    throw UsageError(
        "model.attention_window: the Hugging Face classes attend to all earlier tokens; it must be 0");
  ordered_json json;
  if (as == HuggingFaceClass::kOlmoe) {
    json = {{"architectures", {"OlmoeForCausalLM"}}, {"model_type", "olmoe"}};
    json.update(shape_of(config.model, end_of_text));
    json.update({{"num_experts_per_tok", config::top_k_of(config.routing)},
                 {"norm_topk_prob", config.routing.renormalize},
                 {"attention_bias", false},
                 {"attention_dropout", 0.0},
                 {"clip_qkv", nullptr},
                 {"output_router_logits", false},
                 {"router_aux_loss_coef", config.loss.load_balance}});
  } else {
    json = {{"architectures", {"DtoppForCausalLM"}},
            {"model_type", "dtopp"},
            {"auto_map",
             {{"AutoConfig", "configuration_dtopp.DtoppConfig"},
              {"AutoModel", "modeling_dtopp.DtoppModel"},
              {"AutoModelForCausalLM", "modeling_dtopp.DtoppForCausalLM"}}}};
    json.update(shape_of(config.model, end_of_text));
    json["zero_experts"] = config.model.zero_experts;
    json["zero_kind"] = enum_name(config.model.zero_kind);
    json["shared_experts"] = config.model.shared_experts;
    json["shared_gate"] = config.model.shared_gate;
    json["qk_norm"] = enum_name(config.model.qk_norm);
    json["qkv_bias"] = config.model.qkv_bias;
    json["norm"] = enum_name(config.model.norm);
    json["attend_across_documents"] = config.model.attend_across_documents;
    json["end_of_text"] = config.data.end_of_text;
    if (!config.model.is_dense()) json.update(dtopp_router(config, router));
  }
  return dump_json(json, 2) + "\n";
}

}  // namespace dtopp::convert
