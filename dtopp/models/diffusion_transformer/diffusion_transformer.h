// The diffusion transformer: blocks of self-attention and a dense or Mixture-of-Experts feed-forward layer
// over the patches of an image and the embeddings of its text, modulated by the time t and the image's class.
//
//   c = SiLU(time(t) + class);  m = W c + b                              once for all blocks
//   x = text W_t + b_t, patches W_p + b_p
//   for each block:  shift, scale, gate, shift', scale', gate' = m + its table
//     x += gate  attention(norm(x) (1 + scale)  + shift)
//     x += gate' ffn      (norm(x) (1 + scale') + shift')
//   prediction = (norm(x) (1 + scale") + shift") W_o + b_o              of the image's tokens
//
// norm is LayerNorm without gain and bias, eps 1e-6. Every token of an image sees all others, its text's too.
#pragma once

#include <string>
#include <vector>

#include "dtopp/config/model_config.h"
#include "dtopp/models/batch_losses.h"
#include "dtopp/models/layers/attention.h"
#include "dtopp/models/layers/feed_forward.h"
#include "dtopp/models/model.h"

namespace dtopp {

struct DiffusionBlock {
  at::Tensor modulation_6D;
  AttentionWeights attention;  // norms undefined unless model.qk_norm
  FeedForwardWeights mlp;
};

// The model over tensors that are looked up by name (those of diffusion_transformer_parameters) each time
// they are used, in the order of a forward pass.
struct DiffusionTransformer {
  ModelConfig config;
  RoutingConfig routing;
  ParameterLookup parameter;

  DiffusionBlock block(int64_t layer) const;
};

// The same over tensors that are looked up once, here: masters for the raw weights, averages for EMA's.
DiffusionTransformer bind_diffusion_transformer(const ModelConfig& model, const RoutingConfig& routing,
                                                const ParameterLookup& parameter);

// What pictures are to be like; undefined where the model is not conditioned on it.
struct Condition {
  at::Tensor class_B;   // int64, num_classes: none
  at::Tensor text_BLS;  // f32 [B, text_length, text_size], zeros: none
};

struct Prediction {
  at::Tensor output_BCHW;            // f32
  std::vector<RouteOutput> routing;  // one a layer, of the tokens of all images; none for a dense model
};

// Of what the model learns to predict (objective.h), given images x_BCHW on the way at times t_B, both f32,
// on the device of the weights. Differentiable in the weights.
Prediction predict(const DiffusionTransformer& model, const at::Tensor& x_BCHW, const at::Tensor& t_B,
                   const Condition& condition, const RoutingInputs& inputs);

// A batch's condition.
Condition condition_of(const Batch& batch);

// batch: see diffusion_transformer_data. Values: "diffusion_loss", the mean squared error of the prediction,
// and for MoE those of add_router_losses.
BatchLosses diffusion_losses(const DiffusionTransformer& model, const Batch& batch,
                             const RoutingInputs& inputs, Objective objective, const LossConfig& weights);

// Its parameters in the order of a forward pass.
std::vector<ParameterSpec> diffusion_transformer_parameters(const ModelConfig& model,
                                                            const RoutingConfig& routing);

StepCosts diffusion_transformer_costs(const ModelConfig& model, const CostInputs& inputs);

// All of the above as one record.
Model make_diffusion_transformer(const RunConfig& config);

}  // namespace dtopp
