// Defines the losses of a batch.
//
// Every micro-batch passes through these types:
//
// Routing (router, experts) --> LossFunction --> BatchLosses: total        --> backward pass
//                                                             values       --> metrics
//                                                             activations  --> metrics, router
//                                                             statistics   --> router
//
// Example with two routed layers whose load-balance losses are 1.2 and 1.0: `values` gets "load_balance_loss"
// = 1.1, their mean. With loss.load_balance = 0.01, `total` grows by 0.011.
#pragma once

#include "dtopp/config/run_config.h"
#include "dtopp/models/batch.h"
#include "dtopp/moe/activation_statistics.h"
#include "dtopp/moe/expert_layer.h"

namespace dtopp::models {

struct SampleLosses {
  Tensor loss_B;              // f32; its mean is the model's validation_loss
  Tensor num_assignments_BL;  // int64: token-expert pairs per sample and layer; [B, 0] for a dense model
};

struct BatchLosses {
  Tensor total;                           // the differentiated loss
  ops::NamedTensors values;               // unweighted, detached, f32 []: "lm_loss", …
  moe::ActivationStatistics activations;  // no layers for a dense model
  Tensor statistics;                      // int64 [Router::statistics_shape()]; undefined: none
  Tensor logit_sums;                      // int64 [Router::logit_sums_shape()]; undefined: none
  std::optional<SampleLosses> samples;    // only for a batch with "group" (Model::validation_groups)

  // Throws std::invalid_argument if no loss has this name.
  const Tensor& value(std::string_view name) const { return ops::find_tensor(values, name, "BatchLosses"); }
};

// Token-expert pairs per sample and layer, int64 [B, L]. The batch consists of `samples` equally long
// samples.
Tensor num_assignments_by_sample(const std::vector<ops::RouteOutput>& layers, int64_t samples);

// Adds the router losses, averaged over layers, to `values`: "load_balance_loss", "dynamic_loss" and
// "router_z_loss", and "sequence_balance_loss" if the router computes it. Adds them with their weights to
// `total`, and sets `activations`, `statistics` and `logit_sums`. Does nothing if there are no layers;
// `router` may then be null.
void add_router_losses(const std::vector<ops::RouteOutput>& layers, const moe::Router* router,
                       const config::LossConfig& weights, BatchLosses& losses);

}  // namespace dtopp::models
