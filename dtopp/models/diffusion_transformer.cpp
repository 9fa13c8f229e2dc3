#include "dtopp/models/diffusion_transformer.h"

#include <ATen/record_function.h>

#include "dtopp/models/batch.h"
#include "dtopp/models/costs.h"
#include "dtopp/models/image_batches.h"
#include "dtopp/ops/gemm/linear.h"
#include "dtopp/ops/norm/norm.h"
#include "dtopp/parameters/parameters.h"

namespace dtopp::models {
namespace {

constexpr double kPeriodBase = 10000.0;
constexpr int64_t kTimestepFeatures = 256;

// base^(-i / count) for i < count, f64.
Tensor frequencies(int64_t count, const at::Device& device) {
  const Tensor i = at::arange(count, at::device(device).dtype(at::kDouble));
  return at::pow(kPeriodBase, -i / static_cast<double>(count));
}

// Row and column of each patch, f64 [grid * grid].
struct PatchCoordinates {
  Tensor row_P, column_P;
};

PatchCoordinates patch_coordinates(int64_t grid, const at::Device& device) {
  const Tensor along = at::arange(grid, at::device(device).dtype(at::kDouble));
  return {along.repeat_interleave(grid), along.repeat({grid})};
}

Tensor sines_and_cosines(const Tensor& coordinate_P, int64_t size) {
  const Tensor angle = at::outer(coordinate_P, frequencies(size / 2, coordinate_P.device()));
  return at::cat({angle.sin(), angle.cos()}, 1);
}

constexpr double kFirstBeta = 1e-4, kLastBeta = 0.02;

// Rotary table f32 [T, K], computed in f64, for the tokens of `images` images, one image after the other.
// Each image has `text` tokens at row 0 and column 0, then grid x grid patches row by row. In each head, the
// first K / 4 of the pairs (i, i + K / 2) rotate by the row, the others by the column. Pair j of either
// rotates by position * 10000^(-j / (K / 4)).
RotaryTable axial_rotary_table(int64_t images, int64_t text, int64_t grid, int64_t head_size,
                               const at::Device& device) {
  const PatchCoordinates at_patch = patch_coordinates(grid, device);
  const Tensor frequency = frequencies(head_size / 4, device);
  const Tensor angle =
      at::cat({at::outer(at_patch.row_P, frequency), at::outer(at_patch.column_P, frequency)}, 1)
          .repeat({1, 2});
  const Tensor angle_SK = at::cat({at::zeros({text, head_size}, angle.options()), angle});
  const auto of_all = [&](const Tensor& table_SK) { return table_SK.to(at::kFloat).repeat({images, 1}); };
  return {of_all(angle_SK.cos()), of_all(angle_SK.sin())};
}

// f32 [grid * grid, D]: sines and cosines of the column, then of the row, as in DiT.
Tensor sincos_table(int64_t grid, int64_t hidden_size, const at::Device& device) {
  const PatchCoordinates at_patch = patch_coordinates(grid, device);
  return at::cat({sines_and_cosines(at_patch.column_P, hidden_size / 2),
                  sines_and_cosines(at_patch.row_P, hidden_size / 2)},
                 1)
      .to(at::kFloat);
}

// f32 [B, 256]: cosines, then sines, of 1000 t * 10000^(-i / 128).
Tensor timestep_features(const Tensor& t_B) {
  const Tensor angle =
      at::outer(t_B.to(at::kDouble) * 1000.0, frequencies(kTimestepFeatures / 2, t_B.device()));
  return at::cat({angle.cos(), angle.sin()}, 1).to(at::kFloat);
}

Tensor of_each_image(const Tensor& value_B) { return value_B.to(at::kFloat).view({-1, 1, 1, 1}); }

// The normal quantile of a probability, by bisection within ±9.
double normal_quantile(double probability) {
  double low = -9, high = 9;
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    const bool below = 0.5 * std::erfc(-middle / std::sqrt(2.0)) < probability;
    (below ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

constexpr double kStreamNormEps = 1e-6;

Tensor affine(const DiffusionTransformer& model, const std::string& name, const Tensor& x) {
  const Tensor weight = model.parameter(name + ".weight");
  return ops::linear(x.to(weight.scalar_type()), weight) + model.parameter(name + ".bias");
}

// [B, C, H, W] to [B, patches, C p p]: patches row by row, each as (channel, row, column).
Tensor to_patches(const Tensor& x_BCHW, const config::ModelConfig& config) {
  const int64_t B = x_BCHW.size(0), C = config.channels, n = config.grid_size(), p = config.patch_size;
  return x_BCHW.reshape({B, C, n, p, n, p})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({B, config.image_tokens(), config.patch_values()});
}

// [B, patches, p p C], each patch as (row, column, channel), to [B, C, H, W].
Tensor from_patches(const Tensor& y_BPV, const config::ModelConfig& config) {
  const int64_t B = y_BPV.size(0), C = config.channels, n = config.grid_size(), p = config.patch_size;
  return y_BPV.reshape({B, n, n, p, p, C})
      .permute({0, 5, 1, 3, 2, 4})
      .reshape({B, C, config.image_size, config.image_size});
}

// The tokens of text and image, [B, S, D].
Tensor embed(const DiffusionTransformer& model, const Tensor& x_BCHW, const Condition& condition) {
  const config::ModelConfig& config = model.config;
  Tensor x_BPD = affine(model, "patch_embed", to_patches(x_BCHW, config));
  if (config.position == config::Position::kSincos)
    x_BPD =
        x_BPD + sincos_table(config.grid_size(), config.hidden_size, x_BPD.device()).to(x_BPD.scalar_type());
  if (config.text_length == 0) return x_BPD;
  return at::cat({affine(model, "text_embed", condition.text_BLS), x_BPD}, 1);
}

// SiLU of the embedded time and class, [B, D].
Tensor embed_condition(const DiffusionTransformer& model, const Tensor& t_B, const Condition& condition) {
  const Tensor hidden_BD = at::silu(affine(model, "time_embed.0", timestep_features(t_B)));
  Tensor c_BD = affine(model, "time_embed.2", hidden_BD);
  if (model.config.num_classes > 0)
    c_BD = c_BD + at::embedding(model.parameter("class_embed.weight"), condition.class_B);
  return at::silu(c_BD);
}

// The parts of a modulation, each [B, 1, D].
std::vector<Tensor> parts(const Tensor& shared_BND, const Tensor& table_ND) {
  std::vector<Tensor> parts_B1D;
  for (const Tensor& part_BD : (shared_BND + table_ND).unbind(1)) parts_B1D.push_back(part_BD.unsqueeze(1));
  return parts_B1D;
}

// Rotary table for all tokens of the batch. If positions are added to the tokens, it is the identity, which
// only the QK norm needs.
RotaryTable rotary_table_of(const config::ModelConfig& config, int64_t images, const at::Device& device) {
  if (config.position == config::Position::kRotary)
    return axial_rotary_table(images, config.text_length, config.grid_size(), config.head_size(), device);
  if (config.qk_norm == config::QkNorm::kNone) return {};
  const Tensor zeros_TK = at::zeros({images * config.tokens_per_sample(), config.head_size()},
                                    at::device(device).dtype(at::kFloat));
  return {zeros_TK + 1, zeros_TK};
}

}  // namespace

Tensor ddpm_alpha_products(const at::Device& device) {
  const Tensor beta = at::linspace(kFirstBeta, kLastBeta, kDdpmSteps, at::device(device).dtype(at::kDouble));
  return (1 - beta).cumprod(0);
}

Noised add_noise(config::Objective objective, const Tensor& x0_BCHW, const Tensor& noise_BCHW,
                 const Tensor& t_B) {
  if (objective == config::Objective::kFlow) {
    const Tensor t = of_each_image(t_B);
    return {(1 - t) * x0_BCHW + t * noise_BCHW, noise_BCHW - x0_BCHW};
  }
  const Tensor step_B = (t_B * static_cast<double>(kDdpmSteps)).round().to(at::kLong);
  const Tensor alpha_B = ddpm_alpha_products(t_B.device()).index_select(0, step_B);
  return {of_each_image(alpha_B.sqrt()) * x0_BCHW + of_each_image((1 - alpha_B).sqrt()) * noise_BCHW,
          noise_BCHW};
}

float timestep_at(double share, const config::DiffusionConfig& config) {
  double t = share;
  if (config.timesteps == config::Timesteps::kLogitNormal)
    t = 1.0 / (1.0 + std::exp(-normal_quantile(share)));
  if (config.objective == config::Objective::kFlow) return static_cast<float>(t);
  const double step = std::floor(t * static_cast<double>(kDdpmSteps));
  return static_cast<float>(std::min(step, static_cast<double>(kDdpmSteps - 1)) / kDdpmSteps);
}

std::vector<parameters::ParameterSpec> diffusion_transformer_parameters(
    const config::ModelConfig& model, const config::RoutingConfig& routing) {
  const int64_t D = model.hidden_size, V = model.patch_values();
  constexpr parameters::ParameterRole kConditioning = parameters::ParameterRole::kConditioning;
  constexpr parameters::ParameterRole kOuter = parameters::ParameterRole::kOuterMatrix;
  parameters::ParameterList list(model, routing);
  list.matrix("patch_embed.weight", {D, V}, kOuter);
  list.shift("patch_embed.bias", {D});
  if (model.text_length > 0) {
    list.matrix("text_embed.weight", {D, model.text_size}, kOuter);
    list.shift("text_embed.bias", {D});
  }
  list.matrix("time_embed.0.weight", {D, kTimestepFeatures}, kConditioning);
  list.shift("time_embed.0.bias", {D});
  list.matrix("time_embed.2.weight", {D, D}, kConditioning);
  list.shift("time_embed.2.bias", {D});
  // The last row stands for no class.
  if (model.num_classes > 0)
    list.matrix("class_embed.weight", {model.num_classes + 1, D}, parameters::ParameterRole::kLookUp);
  list.zero_matrix("modulation.weight", {6 * D, D}, kConditioning);
  list.shift("modulation.bias", {6 * D});
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const std::string prefix = "blocks." + std::to_string(layer) + ".";
    list.shift(prefix + "modulation", {6, D});
    list.attention(prefix + "attention.");
    list.feed_forward(prefix + "mlp.", layer);
  }
  list.zero_matrix("final.modulation.weight", {2 * D, D}, kConditioning);
  list.shift("final.modulation.bias", {2 * D});
  list.shift("final.table", {2, D});
  list.zero_matrix("final.proj.weight", {V, D}, kOuter);
  list.shift("final.proj.bias", {V});
  return list.take();
}

DiffusionBlock DiffusionTransformer::block(int64_t layer) const {
  const std::string prefix = "blocks." + std::to_string(layer) + ".";
  DiffusionBlock block;
  block.modulation_6D = parameter(prefix + "modulation");
  block.attention = attention_weights(config, prefix + "attention.", parameter);
  block.mlp = feed_forward_weights(config, routing, prefix + "mlp.", layer, parameter);
  return block;
}

DiffusionTransformer bind_diffusion_transformer(const config::ModelConfig& model,
                                                const config::RoutingConfig& routing,
                                                const ParameterLookup& parameter) {
  return {model, routing, looked_up(diffusion_transformer_parameters(model, routing), parameter)};
}

Prediction predict(const DiffusionTransformer& model, const Tensor& x_BCHW, const Tensor& t_B,
                   const Condition& condition, const moe::Routing& inputs) {
  const config::ModelConfig& config = model.config;
  const int64_t B = x_BCHW.size(0), S = config.tokens_per_sample(), D = config.hidden_size;
  const RotaryTable rotary = rotary_table_of(config, B, x_BCHW.device());
  Prediction prediction;
  Tensor x_BSD = embed(model, x_BCHW, condition);
  const Tensor c_BD = embed_condition(model, t_B, condition);
  const Tensor shared_B6D = affine(model, "modulation", c_BD).view({B, 6, D});
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    RECORD_USER_SCOPE("layer " + std::to_string(layer));
    const DiffusionBlock block = model.block(layer);
    const auto m = parts(shared_B6D, block.modulation_6D);
    // Returns x after attention, and the input of the feed-forward layer.
    const auto attend = [=](const std::vector<Tensor>& in) -> std::vector<Tensor> {
      const ops::Normed modulated = ops::modulated_norm(in[0], in[1], in[2], kStreamNormEps);
      const Tensor mixed_TD = attention(modulated.y.reshape({B * S, D}), block.attention, config, rotary,
                                        SampleMask{S, /*causal=*/false}, layer);
      const ops::Normed attended = ops::modulated_norm(
          ops::add_gated(modulated.x, in[3], mixed_TD.view({B, S, D})), in[4], in[5], kStreamNormEps);
      return {attended.x, attended.y};
    };
    const std::vector<Tensor> attended = run_part(inputs.recompute == config::Recompute::kLayer, attend,
                                                  {x_BSD, m[0], m[1], m[2], m[3], m[4]});
    const Tensor mixed_TD =
        feed_forward(attended[1].view({B * S, D}), block.mlp, layer, inputs, prediction.routing);
    x_BSD = ops::add_gated(attended[0], m[5], mixed_TD.view({B, S, D}));
  }
  RECORD_USER_SCOPE("output");
  const Tensor shared_B2D = affine(model, "final.modulation", c_BD).view({B, 2, D});
  const auto m = parts(shared_B2D, model.parameter("final.table"));
  const Tensor image_BPD = x_BSD.narrow(1, config.text_length, config.image_tokens());
  const Tensor y_BPV =
      affine(model, "final.proj", ops::modulated_norm(image_BPD, m[0], m[1], kStreamNormEps).y);
  prediction.output_BCHW = from_patches(y_BPV.to(at::kFloat), config);
  return prediction;
}

Condition condition_of(const Batch& batch) {
  Condition condition;
  if (batch.has("class")) condition.class_B = batch.tensor("class");
  if (batch.has("text")) condition.text_BLS = batch.tensor("text");
  return condition;
}

BatchLosses diffusion_losses(const DiffusionTransformer& model, const Batch& batch,
                             const moe::Routing& inputs, config::Objective objective,
                             const config::LossConfig& weights) {
  const Tensor& t_B = batch.tensor("t");
  const Noised noised = add_noise(objective, batch.tensor("x0"), batch.tensor("noise"), t_B);
  const Prediction prediction = predict(model, noised.x_BCHW, t_B, condition_of(batch), inputs);
  RECORD_USER_SCOPE("loss");
  const Tensor loss_B = (prediction.output_BCHW - noised.target_BCHW).square().mean({1, 2, 3});

  BatchLosses losses;
  losses.total = loss_B.mean();
  losses.values = {{"diffusion_loss", losses.total.detach()}};
  add_router_losses(prediction.routing, inputs.router.get(), weights, losses);
  if (batch.has("group"))
    losses.samples = {loss_B.detach(), num_assignments_by_sample(prediction.routing, loss_B.size(0))};
  return losses;
}

Model make_diffusion_transformer(const config::RunConfig& config) {
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
            objective = config.diffusion.objective](const Batch& batch, const moe::Routing& inputs) {
      return diffusion_losses(model, batch, inputs, objective, weights);
    };
  };
  return model;
}

StepCosts diffusion_transformer_costs(const config::ModelConfig& model, const CostInputs& inputs) {
  const BlockSizes s = block_sizes(model, inputs);
  const auto u = [](int64_t value) { return static_cast<uint64_t>(value); };
  const uint64_t images = checked_product(
      {u(inputs.micro_batch_size), u(model.channels), u(model.image_size), u(model.image_size), kFp32Bytes});
  StepCosts costs;
  // Besides a block's norms, autograd stores the inputs of the gates. It stores the input of the second gate
  // in any case. On a CUDA device, the outputs of the norms and the modulated outputs are two tensors.
  const uint64_t outputs = s.cuda ? 1 : 0;
  const BlockActivations block = block_activations(s, checked_product({1 + 2 * outputs, s.stream()}));
  costs.first_layer = checked_sum({block.stored, s.stream()});
  costs.recomputed = block.recomputed;
  // The embedded tokens; the last norm's input and outputs.
  costs.activations = checked_sum(
      {checked_product({s.L, costs.first_layer}), checked_product({3 + outputs, s.stream()}), images});
  // Image, noise, noised image, target, prediction and their difference.
  costs.loss = {"images", checked_product({6, images})};
  costs.workspace = checked_sum({block_workspace(s), s.stream()});
  costs.attention_flops = checked_product({12, s.L, s.queries, u(model.tokens_per_sample())});
  costs.recomputed_flops = recomputed_flops(s, costs.attention_flops);
  return costs;
}

}  // namespace dtopp::models
