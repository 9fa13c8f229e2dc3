#include "dtopp/models/diffusion_transformer/diffusion_transformer.h"

#include <memory>
#include <unordered_map>

#include "dtopp/models/batch.h"
#include "dtopp/models/diffusion_transformer/image_batches.h"
#include "dtopp/models/diffusion_transformer/objective.h"
#include "dtopp/models/diffusion_transformer/positions.h"
#include "dtopp/ops/attention/attention.h"
#include "dtopp/ops/attention/norm_rotary.h"
#include "dtopp/ops/gemm/linear.h"

namespace dtopp {
namespace {

constexpr double kStreamNormEps = 1e-6;
constexpr double kQkNormEps = 1e-5;

at::Tensor affine(const DiffusionTransformer& model, const std::string& name, const at::Tensor& x) {
  const at::Tensor weight = model.parameter(name + ".weight");
  return dtopp::linear(x.to(weight.scalar_type()), weight) + model.parameter(name + ".bias");
}

// [B, C, H, W] to [B, patches, C p p]: patches row by row, each as (channel, row, column).
at::Tensor to_patches(const at::Tensor& x_BCHW, const ModelConfig& config) {
  const int64_t B = x_BCHW.size(0), C = config.channels, n = config.grid_size(), p = config.patch_size;
  return x_BCHW.reshape({B, C, n, p, n, p})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({B, config.image_tokens(), config.patch_values()});
}

// [B, patches, p p C], each patch as (row, column, channel), to [B, C, H, W].
at::Tensor from_patches(const at::Tensor& y_BPV, const ModelConfig& config) {
  const int64_t B = y_BPV.size(0), C = config.channels, n = config.grid_size(), p = config.patch_size;
  return y_BPV.reshape({B, n, n, p, p, C})
      .permute({0, 5, 1, 3, 2, 4})
      .reshape({B, C, config.image_size, config.image_size});
}

// The tokens of text and image, [B, S, D].
at::Tensor embed(const DiffusionTransformer& model, const at::Tensor& x_BCHW, const Condition& condition) {
  const ModelConfig& config = model.config;
  at::Tensor x_BPD = affine(model, "patch_embed", to_patches(x_BCHW, config));
  if (config.position == Position::kSincos)
    x_BPD =
        x_BPD + sincos_table(config.grid_size(), config.hidden_size, x_BPD.device()).to(x_BPD.scalar_type());
  if (config.text_length == 0) return x_BPD;
  return at::cat({affine(model, "text_embed", condition.text_BLS), x_BPD}, 1);
}

// SiLU of the embedded time and class, [B, D].
at::Tensor embed_condition(const DiffusionTransformer& model, const at::Tensor& t_B,
                           const Condition& condition) {
  const at::Tensor hidden_BD = at::silu(affine(model, "time_embed.0", timestep_features(t_B)));
  at::Tensor c_BD = affine(model, "time_embed.2", hidden_BD);
  if (model.config.num_classes > 0)
    c_BD = c_BD + at::embedding(model.parameter("class_embed.weight"), condition.class_B);
  return at::silu(c_BD);
}

// The parts of a modulation, each [B, 1, D].
std::vector<at::Tensor> parts(const at::Tensor& shared_BND, const at::Tensor& table_ND) {
  std::vector<at::Tensor> parts_B1D;
  for (const at::Tensor& part_BD : (shared_BND + table_ND).unbind(1))
    parts_B1D.push_back(part_BD.unsqueeze(1));
  return parts_B1D;
}

at::Tensor modulated_norm(const at::Tensor& x_BSD, const at::Tensor& shift_B1D, const at::Tensor& scale_B1D) {
  const at::Tensor normed_BSD = at::layer_norm(x_BSD, {x_BSD.size(2)}, {}, {}, kStreamNormEps);
  return at::addcmul(shift_B1D, normed_BSD, scale_B1D + 1);
}

// Applies rotary positions to each head: [T, H, K].
at::Tensor apply_rotary(const at::Tensor& x_THK, const RotaryTable& rotary) {
  const auto halves = x_THK.chunk(2, -1);
  const at::Tensor turned_THK = at::cat({-halves[1], halves[0]}, -1);
  return (x_THK * rotary.cos_TK.unsqueeze(1) + turned_THK * rotary.sin_TK.unsqueeze(1))
      .to(x_THK.scalar_type());
}

// Queries or keys of all images, [T, H, K].
at::Tensor project(const at::Tensor& x_TD, const at::Tensor& weight_DD, const at::Tensor& gain_D,
                   const ModelConfig& config, const RotaryTable& rotary) {
  const at::Tensor projected_TD = dtopp::linear(x_TD, weight_DD);
  if (gain_D.defined())
    return norm_rotary(projected_TD, gain_D, rotary.cos_TK, rotary.sin_TK, config.num_heads, kQkNormEps);
  const at::Tensor heads_THK = projected_TD.view({x_TD.size(0), config.num_heads, config.head_size()});
  return config.position == Position::kRotary ? apply_rotary(heads_THK, rotary) : heads_THK;
}

at::Tensor attend(const at::Tensor& x_BSD, const AttentionWeights& weights, const ModelConfig& config,
                  const RotaryTable& rotary) {
  const int64_t B = x_BSD.size(0), S = x_BSD.size(1), D = x_BSD.size(2);
  const at::Tensor x_TD = x_BSD.reshape({B * S, D});
  const auto split = [&](const at::Tensor& heads) {
    return heads.view({B, S, config.num_heads, config.head_size()}).transpose(1, 2);
  };
  const at::Tensor q = split(project(x_TD, weights.q_DD, weights.q_norm_D, config, rotary));
  const at::Tensor k = split(project(x_TD, weights.k_DD, weights.k_norm_D, config, rotary));
  const at::Tensor v = split(dtopp::linear(x_TD, weights.v_DD));
  const at::Tensor mixed_BSD = self_attention(q, k, v, /*causal=*/false).transpose(1, 2).reshape({B, S, D});
  return dtopp::linear(mixed_BSD, weights.o_DD);
}

// Rotary table for all tokens of the batch. If positions are added to the tokens, it is the identity
// rotation.
RotaryTable rotary_table_of(const ModelConfig& config, int64_t images, const at::Device& device) {
  if (config.position == Position::kRotary)
    return axial_rotary_table(images, config.text_length, config.grid_size(), config.head_size(), device);
  const at::Tensor zeros_TK = at::zeros({images * config.tokens_per_sample(), config.head_size()},
                                        at::device(device).dtype(at::kFloat));
  return {zeros_TK + 1, zeros_TK};
}

}  // namespace

DiffusionBlock DiffusionTransformer::block(int64_t layer) const {
  const std::string prefix = "blocks." + std::to_string(layer) + ".";
  const auto get = [&](const std::string& name) { return parameter(prefix + name); };
  DiffusionBlock block;
  block.modulation_6D = get("modulation");
  block.attention.q_DD = get("attention.q_proj.weight");
  block.attention.k_DD = get("attention.k_proj.weight");
  block.attention.v_DD = get("attention.v_proj.weight");
  if (config.qk_norm) {
    block.attention.q_norm_D = get("attention.q_norm.weight");
    block.attention.k_norm_D = get("attention.k_norm.weight");
  }
  block.attention.o_DD = get("attention.o_proj.weight");
  block.mlp = feed_forward_weights(config, routing, prefix + "mlp.", parameter);
  return block;
}

DiffusionTransformer bind_diffusion_transformer(const ModelConfig& model, const RoutingConfig& routing,
                                                const ParameterLookup& parameter) {
  auto tensors = std::make_shared<std::unordered_map<std::string, at::Tensor>>();
  for (const ParameterSpec& spec : diffusion_transformer_parameters(model, routing))
    tensors->emplace(spec.name, parameter(spec.name));
  return {model, routing, [tensors](const std::string& name) { return tensors->at(name); }};
}

Prediction predict(const DiffusionTransformer& model, const at::Tensor& x_BCHW, const at::Tensor& t_B,
                   const Condition& condition, const Routing& inputs) {
  const ModelConfig& config = model.config;
  const int64_t B = x_BCHW.size(0), S = config.tokens_per_sample(), D = config.hidden_size;
  const RotaryTable rotary = rotary_table_of(config, B, x_BCHW.device());
  Prediction prediction;
  at::Tensor x_BSD = embed(model, x_BCHW, condition);
  const at::Tensor c_BD = embed_condition(model, t_B, condition);
  const at::Tensor shared_B6D = affine(model, "modulation", c_BD).view({B, 6, D});
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const DiffusionBlock block = model.block(layer);
    const auto m = parts(shared_B6D, block.modulation_6D);
    x_BSD =
        at::addcmul(x_BSD, m[2], attend(modulated_norm(x_BSD, m[0], m[1]), block.attention, config, rotary));
    const at::Tensor normed_TD = modulated_norm(x_BSD, m[3], m[4]).view({B * S, D});
    const at::Tensor mixed_TD =
        feed_forward(normed_TD, block.mlp, static_cast<size_t>(layer), inputs, prediction.routing);
    x_BSD = at::addcmul(x_BSD, m[5], mixed_TD.view({B, S, D}));
  }
  const at::Tensor shared_B2D = affine(model, "final.modulation", c_BD).view({B, 2, D});
  const auto m = parts(shared_B2D, model.parameter("final.table"));
  const at::Tensor image_BPD = x_BSD.narrow(1, config.text_length, config.image_tokens());
  const at::Tensor y_BPV = affine(model, "final.proj", modulated_norm(image_BPD, m[0], m[1]));
  prediction.output_BCHW = from_patches(y_BPV.to(at::kFloat), config);
  return prediction;
}

Condition condition_of(const Batch& batch) {
  Condition condition;
  if (batch.has("class")) condition.class_B = batch.tensor("class");
  if (batch.has("text")) condition.text_BLS = batch.tensor("text");
  return condition;
}

BatchLosses diffusion_losses(const DiffusionTransformer& model, const Batch& batch, const Routing& inputs,
                             Objective objective, const LossConfig& weights) {
  const at::Tensor& t_B = batch.tensor("t");
  const Noised noised = add_noise(objective, batch.tensor("x0"), batch.tensor("noise"), t_B);
  const Prediction prediction = predict(model, noised.x_BCHW, t_B, condition_of(batch), inputs);
  const at::Tensor loss_B = (prediction.output_BCHW - noised.target_BCHW).square().mean({1, 2, 3});

  BatchLosses losses;
  losses.total = loss_B.mean();
  losses.values = {{"diffusion_loss", losses.total.detach()}};
  add_router_losses(prediction.routing, inputs.router.get(), weights, losses);
  if (batch.has("group"))
    losses.samples = {loss_B.detach(), num_assignments_by_sample(prediction.routing, loss_B.size(0))};
  return losses;
}

Model make_diffusion_transformer(const RunConfig& config) {
  Model model;
  model.parameters = diffusion_transformer_parameters(config.model, config.routing);
  model.num_routed_layers = config.model.is_dense() ? 0 : config.model.num_layers;
  model.tokens_per_sample = config.model.tokens_per_sample();
  model.validation_loss = "diffusion_loss";
  model.ema_decay = config.diffusion.ema_decay;
  for (int64_t bucket = 0; bucket < kTimestepBuckets; ++bucket)
    model.validation_groups.push_back("t" + std::to_string(bucket));
  model.bind = [config](const ParameterLookup& parameter) {
    return [model = DiffusionTransformer{config.model, config.routing, parameter}, weights = config.loss,
            objective = config.diffusion.objective](const Batch& batch, const Routing& inputs) {
      return diffusion_losses(model, batch, inputs, objective, weights);
    };
  };
  model.costs = [config](const CostInputs& inputs) {
    return diffusion_transformer_costs(config.model, inputs);
  };
  model.open_data = [config](Verify verify) { return diffusion_transformer_data(config, verify); };
  return model;
}

}  // namespace dtopp
