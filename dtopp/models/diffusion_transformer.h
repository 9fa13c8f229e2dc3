// Implements the diffusion transformer.
//
// It consists of blocks of self-attention and a dense or Mixture-of-Experts feed-forward layer over the
// patches of an image and the embeddings of its text. The time t and the image's class modulate the blocks.
//
//   c = SiLU(time(t) + class);  m = W c + b                              once for all blocks
//   x = text W_t + b_t, patches W_p + b_p
//   for each block:  shift, scale, gate, shift', scale', gate' = m + the block's table
//     x += gate  attention(norm(x) (1 + scale)  + shift)
//     x += gate' ffn      (norm(x) (1 + scale') + shift')
//   prediction = (norm(x) (1 + scale") + shift") W_o + b_o              image tokens only
//
// norm is LayerNorm without gain and bias, eps 1e-6. Every token attends to all tokens of its image, text
// included.
#pragma once

#include "dtopp/config/model_config.h"
#include "dtopp/models/attention.h"
#include "dtopp/models/batch_losses.h"
#include "dtopp/models/feed_forward.h"
#include "dtopp/models/model.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp::models {

// Defines the target that a diffusion transformer predicts, given an image x_0 and normal noise e.
//
//   objective  noised image                            target      time
//   flow       x_t = (1 - t) x_0 + t e                 e - x_0     t in [0, 1]
//   ddpm       x_t = sqrt(a_k) x_0 + sqrt(1 - a_k) e   e           t = k / 1000, k from 0 to 999
//
// a_k is the product of 1 - b_i over i from 0 to k. b rises from 1e-4 to 0.02 in equal steps.

inline constexpr int64_t kDdpmSteps = 1000;

struct Noised {
  Tensor x_BCHW, target_BCHW;  // f32
};

// x0 and noise: f32 [B, C, H, W]; t: f32 [B]; all on one device.
Noised add_noise(config::Objective objective, const Tensor& x0_BCHW, const Tensor& noise_BCHW,
                 const Tensor& t_B);

// a_k for k from 0 to 999, f64.
Tensor ddpm_alpha_products(const at::Device& device);

// The t below which the given share of training samples lies; `share` is in [0, 1]. With ddpm, the t of a
// step.
float timestep_at(double share, const config::DiffusionConfig& config);

struct DiffusionBlock {
  Tensor modulation_6D;
  AttentionWeights attention;
  FeedForwardWeights mlp;
};

// The model over tensors that are looked up by name (diffusion_transformer_parameters) at each use, in the
// order of the forward pass.
struct DiffusionTransformer {
  config::ModelConfig config;
  config::RoutingConfig routing;
  ParameterLookup parameter;

  DiffusionBlock block(int64_t layer) const;
};

// The same with all tensors looked up now: main parameters for the raw weights, or their EMA.
DiffusionTransformer bind_diffusion_transformer(const config::ModelConfig& model,
                                                const config::RoutingConfig& routing,
                                                const ParameterLookup& parameter);

// The condition of images. A member is undefined if the model is not conditioned on it.
struct Condition {
  Tensor class_B;   // int64; num_classes means no class
  Tensor text_BLS;  // f32 [B, text_length, text_size]; zeros mean no text
};

struct Prediction {
  Tensor output_BCHW;                     // f32
  std::vector<ops::RouteOutput> routing;  // per layer, over the tokens of all images; empty for a dense model
};

// Predicts the model's target for noised images x_BCHW at times t_B. Both are f32 on the
// weights' device. Differentiable in the weights.
Prediction predict(const DiffusionTransformer& model, const Tensor& x_BCHW, const Tensor& t_B,
                   const Condition& condition, const moe::Routing& inputs);

Condition condition_of(const Batch& batch);

// batch: see training_images. Values: "diffusion_loss", the mean squared error of the prediction, and with
// experts those of add_router_losses.
BatchLosses diffusion_losses(const DiffusionTransformer& model, const Batch& batch,
                             const moe::Routing& inputs, config::Objective objective,
                             const config::LossConfig& weights);

// The parameters in the order of the forward pass.
std::vector<parameters::ParameterSpec> diffusion_transformer_parameters(const config::ModelConfig& model,
                                                                        const config::RoutingConfig& routing);

StepCosts diffusion_transformer_costs(const config::ModelConfig& model, const CostInputs& inputs);

Model make_diffusion_transformer(const config::RunConfig& config);

}  // namespace dtopp::models
