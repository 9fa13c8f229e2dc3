// Defines the losses of a batch, and the inputs and results of its routing.
//
// Every micro-batch passes through these types:
//
// RoutingInputs (p, capacity, f) --> LossFunction --> BatchLosses: total       --> backward pass
//                                                                  values      --> metrics
//                                                                  activations --> metrics, controller
//                                                                  prob_histogram_CM   --> controller
//
// Example with two routed layers whose load-balance losses are 1.2 and 1.0: `values` gets "load_balance_loss"
// = 1.1, their mean. With loss.load_balance = 0.01, `total` grows by 0.011.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtopp/config/run_config.h"
#include "dtopp/models/batch.h"
#include "dtopp/moe/activation_statistics.h"
#include "dtopp/moe/expert_layer.h"
#include "dtopp/moe/threshold_controller.h"

namespace dtopp {

// The inputs of routing besides the weights.
struct RoutingInputs {
  std::vector<at::Tensor> threshold;  // p per layer, f64 [] on the model's device
  // Optional: computes p of a layer from the layer's input, instead of `threshold`.
  std::function<at::Tensor(size_t layer, const at::Tensor& x_TD, const ExpertLayerWeights& weights)>
      choose_threshold;
  // Returns rank 0's value on every rank, for ranks that solve for p together. Empty: each rank uses its own.
  std::function<double(double found)> agree;
  // Optional: the routing map of a layer, bool [T, E], instead of the router's choice.
  std::function<at::Tensor(size_t layer, int64_t num_tokens)> selection;
  // Capacity for token-expert pairs per layer (moe_ffn's capacity). Empty: the exact number.
  std::vector<int64_t> capacity;
  // With global batch statistics: each expert's share f of the last step's tokens on all ranks, f32 [L, E].
  // If it is undefined, or zero for a layer, the micro-batch's own counts give f.
  at::Tensor share_LE;
  ExpertBackend experts;  // empty: moe_ffn
  RouterOptions router;
};

// Takes the thresholds of layers 0 to num_layers - 1 for the next step from the controller.
RoutingInputs routing_inputs(const ThresholdController& controller, int64_t num_layers);

// Losses per sample of a batch.
struct SampleLosses {
  at::Tensor loss_B;              // f32; its mean is the model's validation_loss
  at::Tensor num_assignments_BL;  // int64: token-expert pairs per sample and layer; [B, 0] for a dense model
};

struct BatchLosses {
  at::Tensor total;                  // the differentiated loss
  NamedTensors values;               // unweighted, detached, f32 []: "lm_loss", …
  ActivationStatistics activations;  // no layers for a dense model
  // Histograms of cumulative probabilities, int64 [1, kCumulativeProbBins] or [L, kCumulativeProbBins] as
  // RoutingInputs::router selects; undefined if it selects none.
  at::Tensor prob_histogram_CM;
  std::optional<SampleLosses> samples;  // only for a batch with "group" (Model::validation_groups)

  // Throws std::invalid_argument if no loss has this name.
  const at::Tensor& value(std::string_view name) const { return find_tensor(values, name, "BatchLosses"); }
};

// Token-expert pairs per sample and layer, int64 [B, L]. The batch consists of `samples` equally long
// samples.
at::Tensor num_assignments_by_sample(const std::vector<RouteOutput>& layers, int64_t samples);

// Adds the router losses, averaged over layers: "load_balance_loss", "dynamic_loss" and "router_z_loss". Also
// counts the chosen experts, and the cumulative probabilities if RoutingInputs::router samples them.
void add_router_losses(const std::vector<RouteOutput>& layers, const RoutingInputs& inputs,
                       const LossConfig& weights, BatchLosses& losses);

}  // namespace dtopp
