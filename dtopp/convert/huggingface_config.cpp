#include "dtopp/convert/huggingface_config.h"

#include <nlohmann/json.hpp>

#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/json.h"
#include "dtopp/config/config.h"

namespace dtopp::convert {
namespace {

using config::QkNorm;

// In the order of HuggingFaceClass.
constexpr std::array<HuggingFaceFamily, 5> kFamilies = {{{.architecture = "DtoppForCausalLM"},
                                                         {.architecture = "OlmoeForCausalLM"},
                                                         {.architecture = "MixtralForCausalLM",
                                                          .qk_norm = QkNorm::kNone,
                                                          .rope_base = 1e6,
                                                          .num_kv_heads = 8,
                                                          .top_k = 2,
                                                          .experts_key = "num_local_experts",
                                                          .layer = "block_sparse_moe.",
                                                          .gate = "w1",
                                                          .up = "w3",
                                                          .down = "w2"},
                                                         {.architecture = "Qwen2MoeForCausalLM",
                                                          .qk_norm = QkNorm::kNone,
                                                          .norm_eps = 1e-6,
                                                          .num_kv_heads = 16,
                                                          .top_k = 4,
                                                          .ffn_key = "moe_intermediate_size"},
                                                         {.architecture = "Qwen3MoeForCausalLM",
                                                          .qk_norm = QkNorm::kHead,
                                                          .norm_eps = 1e-6,
                                                          .num_kv_heads = 4,
                                                          .ffn_key = "moe_intermediate_size"}}};

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
      {"router_max_experts", routing.max_experts},
      {"router_hash_layers", routing.hash_layers}};
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
  using enum HuggingFaceClass;
  const config::ModelConfig& model = config.model;
  ordered_json json = {{"num_experts_per_tok", config::top_k_of(config.routing)},
                       {"norm_topk_prob", config.routing.renormalize == config::Renormalize::kSum},
                       {"attention_dropout", 0.0},
                       {"output_router_logits", false},
                       {"router_aux_loss_coef", config.loss.load_balance}};
  const ordered_json window =
      model.attention_window > 0 ? ordered_json(model.attention_window) : ordered_json();
  if (as == kOlmoe) json.update({{"attention_bias", false}, {"clip_qkv", nullptr}});
  if (as == kMixtral) {
    json.erase("norm_topk_prob");
    json.update({{"sliding_window", window}, {"router_jitter_noise", 0.0}});
  }
  if (as == kQwen2Moe)
    json.update({{"qkv_bias", model.qkv_bias},
                 {"shared_expert_intermediate_size", model.shared_ffn_hidden_size()},
                 {"use_sliding_window", false}});
  if (as == kQwen3Moe)
    json.update(
        {{"attention_bias", false}, {"use_sliding_window", !window.is_null()}, {"sliding_window", window}});
  if (as == kQwen2Moe || as == kQwen3Moe)
    json.update({{"decoder_sparse_step", 1}, {"mlp_only_layers", ordered_json::array()}});
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
    if (!fits) throw UsageError(name, ": ", key, " must be ", value);
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
  require(routing.hash_layers == 0, "routing.hash_layers", "0");
  require(routing.expert_normalization == config::ExpertNormalization::kNone, "routing.expert_normalization",
          "none");
  require(routing.normalization == config::Normalization::kNone, "routing.normalization", "none");
  require(routing.renormalize != config::Renormalize::kL2, "routing.renormalize", "true or false");
  require(as != kMixtral || routing.renormalize == config::Renormalize::kSum, "routing.renormalize", "true");
}

constexpr uint64_t kMostBytes = uint64_t{1} << 24;

// Keys that are missing have the defaults of transformers.
[[noreturn]] void refuse(const JsonFields& file, const std::string& key, const std::string& cause) {
  throw UsageError(file.place(), ": ", key, ": ", cause);
}

template <class Enum>
Enum one_of(const JsonFields& file, const std::string& key, Enum otherwise) {
  if (!file.has(key)) return otherwise;
  const std::string text = file.text(key);
  if (const auto value = enum_named<Enum>(text)) return *value;
  refuse(file, key, "dtopp has no \"" + text + "\"");
}

// true, false or "l2".
config::Renormalize read_renormalize(const JsonFields& file) {
  std::string text;
  const auto value = file.find("router_renormalize");
  if (value && JsonTree::read(*value, text))
    return one_of(file, "router_renormalize", config::Renormalize::kSum);
  return file.get("router_renormalize", true) ? config::Renormalize::kSum : config::Renormalize::kNo;
}

// Returns the base of rotary positions without scaling, under today's key or the former ones.
double read_rope_base(const JsonFields& file, double otherwise) {
  if (file.has("rope_scaling")) refuse(file, "rope_scaling", "dtopp has none");
  if (file.has("rope_parameters")) {
    const JsonFields rope = file.object("rope_parameters");
    if (rope.get<std::string>("rope_type", "default") != "default" ||
        rope.get("partial_rotary_factor", 1.0) != 1)
      refuse(file, "rope_parameters", "dtopp rotates whole heads without scaling, not " + rope.dump());
    otherwise = rope.get("rope_theta", otherwise);
  }
  return file.get("rope_theta", otherwise);
}

// Requires the properties that all models of dtopp share.
void require_fitting(const JsonFields& file) {
  if (file.has("kv_lora_rank"))
    refuse(file, "kv_lora_rank", "dtopp has no multi-head latent attention (MLA)");
  if (const auto act = file.get<std::string>("hidden_act", "silu"); act != "silu")
    refuse(file, "hidden_act", "dtopp's experts have silu, not " + act);
  if (file.has("clip_qkv")) refuse(file, "clip_qkv", "dtopp does not clip queries, keys and values");
  if (file.get("attention_bias", false)) refuse(file, "attention_bias", "dtopp's attention has no biases");
}

config::ModelConfig read_shape(const JsonFields& file, const HuggingFaceFamily& family) {
  config::ModelConfig model;
  model.vocab_size = file.integer("vocab_size");
  model.hidden_size = file.integer("hidden_size");
  model.ffn_hidden_size = file.integer(family.ffn_key);
  model.num_layers = file.integer("num_hidden_layers");
  model.num_heads = file.integer("num_attention_heads");
  // The defaults stay 0.
  if (const auto heads = file.get("num_key_value_heads", family.num_kv_heads); heads != model.num_heads)
    model.chosen_kv_heads = heads;
  if (const auto size = file.get<int64_t>("head_dim", 0);
      size != model.hidden_size / std::max<int64_t>(model.num_heads, 1))
    model.chosen_head_size = size;
  model.norm_eps = file.get("rms_norm_eps", family.norm_eps);
  model.rope_base = read_rope_base(file, family.rope_base);
  model.sequence_length = file.integer("max_position_embeddings");
  // Classes of transformers accept both keys.
  const char* other = "num_local_experts";
  model.num_experts = file.integer(file.has(other) ? other : family.experts_key);
  model.init_std = file.get("initializer_range", model.init_std);
  return model;
}

// The window that every layer has; one as wide as the sequence is none.
int64_t read_window(const JsonFields& file, const config::ModelConfig& model) {
  const auto window = file.get<int64_t>("sliding_window", 0);
  return window < model.sequence_length ? window : 0;
}

// Requires that all layers are alike: experts, and attention to all earlier tokens.
void require_equal_layers(const JsonFields& file) {
  if (file.get<int64_t>("decoder_sparse_step", 1) != 1)
    refuse(file, "decoder_sparse_step", "dtopp's layers all have experts");
  if (!file.get("mlp_only_layers", std::vector<int64_t>()).empty())
    refuse(file, "mlp_only_layers", "dtopp's layers all have experts");
  for (const std::string& type : file.get("layer_types", std::vector<std::string>()))
    if (type != "full_attention") refuse(file, "layer_types", "dtopp's layers have no " + type);
}

void read_mixtral(const JsonFields& file, config::RunConfig& config) {
  if (file.get("router_jitter_noise", 0.0) != 0)
    refuse(file, "router_jitter_noise", "dtopp adds no noise to the router's input");
  config.routing.renormalize = config::Renormalize::kSum;
  config.model.attention_window = read_window(file, config.model);
}

void read_qwen2_moe(const JsonFields& file, config::RunConfig& config) {
  config::ModelConfig& model = config.model;
  if (file.get("use_sliding_window", false) && read_window(file, model) > 0)
    refuse(file, "use_sliding_window", "dtopp has no window in some layers alone");
  model.qkv_bias = file.get("qkv_bias", true);
  model.shared_gate = true;
  const auto shared = file.integer("shared_expert_intermediate_size");
  if (model.ffn_hidden_size < 1 || shared % model.ffn_hidden_size != 0)
    refuse(file, "shared_expert_intermediate_size",
           std::to_string(shared) + " is not a multiple of " + std::to_string(model.ffn_hidden_size) +
               ", the size of an expert");
  model.shared_experts = shared / model.ffn_hidden_size;
}

// The parts of the classes that transformers includes.
void read_family(const JsonFields& file, HuggingFaceClass as, config::RunConfig& config) {
  const HuggingFaceFamily& family = family_of(as);
  config.model.norm = config::NormType::kRms;
  config.model.qk_norm = family.qk_norm;
  config.model.tie_embeddings = file.get("tie_word_embeddings", false);
  config.routing.method = config::RoutingMethod::kTopK;
  config.routing.experts = {static_cast<double>(file.get("num_experts_per_tok", family.top_k))};
  config.routing.normalization = config::Normalization::kNone;
  config.routing.renormalize =
      file.get("norm_topk_prob", false) ? config::Renormalize::kSum : config::Renormalize::kNo;
  config.loss.load_balance = file.get("router_aux_loss_coef", config.loss.load_balance);
  config.loss.dynamic = 0;
  require_equal_layers(file);
  if (as == HuggingFaceClass::kMixtral) read_mixtral(file, config);
  if (as == HuggingFaceClass::kQwen2Moe) read_qwen2_moe(file, config);
  if (as == HuggingFaceClass::kQwen3Moe && file.get("use_sliding_window", false))
    config.model.attention_window = read_window(file, config.model);
}

// The numbers of experts, for each method's meaning of them.
void read_experts(const JsonFields& file, config::RunConfig& config) {
  using enum config::RoutingMethod;
  config::RoutingConfig& routing = config.routing;
  const auto top_k = file.get<int64_t>("router_top_k", 8);
  const bool takes_zero_experts = routing.method == kTopKBias && config.model.zero_experts > 0;
  const bool is_top_k = routing.method == kTopK || routing.method == kTopKBias || routing.method == kHash;
  routing.max_experts = takes_zero_experts ? top_k : file.get<int64_t>("router_max_experts", 0);
  if (is_top_k && !takes_zero_experts)
    routing.experts = {static_cast<double>(top_k)};
  else if (file.has("router_target_experts"))
    routing.experts = file.numbers("router_target_experts");
  if (routing.experts.size() > 1) routing.scope = config::ThresholdScope::kLayer;
}

void read_dtopp(const JsonFields& file, config::RunConfig& config) {
  config.model.zero_experts = file.get<int64_t>("zero_experts", 0);
  config.model.zero_kind = one_of(file, "zero_kind", config::ZeroKind::kZero);
  config.model.shared_experts = file.get<int64_t>("shared_experts", 0);
  config.model.shared_gate = file.get("shared_gate", false);
  config.model.qk_norm = one_of(file, "qk_norm", config::QkNorm::kWhole);
  config.model.qkv_bias = file.get("qkv_bias", false);
  config.model.norm = one_of(file, "norm", config::NormType::kLayer);
  config.model.tie_embeddings = file.get("tie_word_embeddings", true);
  config.model.attend_across_documents = file.get("attend_across_documents", true);
  config.data.end_of_text = file.get("end_of_text", config.data.end_of_text);
  if (config.model.is_dense()) return;
  config::RoutingConfig& routing = config.routing;
  routing.method = one_of(file, "router_method", config::RoutingMethod::kDTopP);
  routing.normalization = one_of(file, "router_normalization", config::Normalization::kDynamic);
  routing.expert_normalization =
      one_of(file, "router_expert_normalization", config::ExpertNormalization::kNone);
  routing.renormalize = read_renormalize(file);
  routing.scope = one_of(file, "router_scope", config::ThresholdScope::kGlobal);
  routing.gate_scale = file.get("router_gate_scale", routing.gate_scale);
  routing.cut_decay = file.get("router_cut_decay", routing.cut_decay);
  routing.hash_layers = file.get<int64_t>("router_hash_layers", 0);
  read_experts(file, config);
  // These methods have no such losses.
  if (routing.method == config::RoutingMethod::kRelu) config.loss.load_balance = 0;
  if (!config::has_logits(routing.method)) config.loss.load_balance = config.loss.dynamic = 0;
}

// Reads p in the controller's form. Thresholds that differ between layers set the scope to layer.
std::vector<double> read_thresholds(const JsonFields& file, config::RunConfig& config) {
  config::RoutingConfig& routing = config.routing;
  if (config.model.is_dense() || !config::has_threshold(routing.method)) return {};
  std::vector<double> by_layer;
  if (file.has("router_thresholds")) by_layer = file.numbers("router_thresholds");
  if (by_layer.empty() && routing.scope == config::ThresholdScope::kGlobal) return {routing.threshold};
  if (by_layer.size() != static_cast<size_t>(config.model.num_layers))
    refuse(file, "router_thresholds",
           "expected one for each of " + std::to_string(config.model.num_layers) + " layers");
  for (const double threshold : by_layer) config::require_threshold("router_thresholds", threshold);
  const bool equal = std::ranges::adjacent_find(by_layer, std::not_equal_to()) == by_layer.end();
  if (!equal) routing.scope = config::ThresholdScope::kLayer;
  if (routing.method == config::RoutingMethod::kTopP) {
    if (!equal) refuse(file, "router_thresholds", "top_p has one threshold for all layers");
    routing.threshold = by_layer[0];
  }
  if (routing.scope == config::ThresholdScope::kGlobal) by_layer.resize(1);
  return by_layer;
}

}  // namespace

const HuggingFaceFamily& family_of(HuggingFaceClass name) { return kFamilies.at(static_cast<size_t>(name)); }

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

ImportedConfig read_huggingface_config(const fs::path& path) {
  const JsonFields file(read_file(path, kMostBytes), path.string());
  require_fitting(file);
  const auto type = file.text("model_type");
  const auto as = enum_named<HuggingFaceClass>(type);
  if (!as) {
    const auto names = enum_names(HuggingFaceClass());
    refuse(file, "model_type", "dtopp reads " + joined({names.begin(), names.end()}, ", ") + ", not " + type);
  }
  ImportedConfig imported{.as = *as, .config = {}, .router = {}};
  imported.config.model = read_shape(file, family_of(*as));
  *as == HuggingFaceClass::kDtopp ? read_dtopp(file, imported.config)
                                  : read_family(file, *as, imported.config);
  imported.router.thresholds = read_thresholds(file, imported.config);
  imported.router.cut_steps = file.get<int64_t>("router_cut_steps", 0);
  imported.router.normalization_steps = file.get<int64_t>("router_normalization_steps", 0);
  return imported;
}

}  // namespace dtopp::convert
