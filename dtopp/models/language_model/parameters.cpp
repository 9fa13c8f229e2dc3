#include <cmath>

#include "dtopp/models/language_model/language_model.h"

namespace dtopp {
namespace {

class ParameterList {
 public:
  void gain(const std::string& name, int64_t size) {
    list_.push_back({name, {size}, {Distribution::kOne}, ParameterRole::kGain});
  }
  void matrix(const std::string& name, std::vector<int64_t> shape, double std,
              ParameterRole role = ParameterRole::kMatrix) {
    list_.push_back({name, std::move(shape), {Distribution::kTruncatedNormal, std}, role});
  }
  void router(const std::string& name, int64_t num_experts, int64_t hidden_size, double std, bool dynamic) {
    matrix(name + ".weight", {num_experts, hidden_size}, std, ParameterRole::kRouter);
    if (dynamic) list_.push_back({name + ".scale", {}, {Distribution::kOne}, ParameterRole::kRouterScale});
  }
  std::vector<ParameterSpec> take() { return std::move(list_); }

 private:
  std::vector<ParameterSpec> list_;
};

}  // namespace

std::vector<ParameterSpec> language_model_parameters(const ModelConfig& model, const RoutingConfig& routing) {
  const int64_t D = model.hidden_size;
  const int64_t F = model.ffn_hidden_size;
  const int64_t E = model.num_experts;
  const double std = model.init_std;
  const double residual_std =
      model.scale_residual_init ? std / std::sqrt(2.0 * static_cast<double>(model.num_layers)) : std;

  ParameterList list;
  list.matrix("model.embed_tokens.weight", {model.vocab_size, D}, std,
              model.tie_embeddings ? ParameterRole::kTiedLookUp : ParameterRole::kLookUp);
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    list.gain(prefix + "input_layernorm.weight", D);
    for (const char* name : {"q", "k", "v"})
      list.matrix(prefix + "self_attn." + name + "_proj.weight", {D, D}, std);
    list.gain(prefix + "self_attn.q_norm.weight", D);
    list.gain(prefix + "self_attn.k_norm.weight", D);
    list.matrix(prefix + "self_attn.o_proj.weight", {D, D}, residual_std);
    list.gain(prefix + "post_attention_layernorm.weight", D);
    if (model.is_dense()) {
      list.matrix(prefix + "mlp.gate_up_proj.weight", {2 * F, D}, std);
      list.matrix(prefix + "mlp.down_proj.weight", {D, F}, residual_std);
    } else {
      list.router(prefix + "mlp.gate", E, D, std, routing.normalization == Normalization::kDynamic);
      list.matrix(prefix + "mlp.experts.gate_up_proj", {E, 2 * F, D}, std, ParameterRole::kExpert);
      list.matrix(prefix + "mlp.experts.down_proj", {E, D, F}, residual_std, ParameterRole::kExpert);
    }
  }
  list.gain("model.norm.weight", D);
  if (!model.tie_embeddings) list.matrix("lm_head.weight", {model.vocab_size, D}, std);
  return list.take();
}

}  // namespace dtopp
