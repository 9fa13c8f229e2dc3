// The named losses of a batch, and what routing needs and leaves besides.
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

// What routing needs besides weights.
struct RoutingInputs {
  std::vector<at::Tensor> threshold;  // p of each layer, f64 [] on the model's device
  // Where there is one, p of a layer once its input is known, in place of `threshold`.
  std::function<at::Tensor(size_t layer, const at::Tensor& x_TD, const ExpertLayerWeights& weights)>
      choose_threshold;
  // Of ranks that solve for p together: what the first one has found. None: what was found here.
  std::function<double(double found)> agree;
  // Where there is one, the experts of a layer's tokens: bool [T, E], in place of the router's choice.
  std::function<at::Tensor(size_t layer, int64_t num_tokens)> selection;
  // Room for the token-expert pairs of each layer; empty: as many as there are (moe_ffn's max_pairs).
  std::vector<int64_t> max_pairs;
  // With global batch statistics: each expert's share f of the tokens of the last step, of all ranks, f32
  // [L, E]; of a layer whose shares are 0, and where it is undefined, a micro-batch's own counts give f.
  at::Tensor share_LE;
  ExpertCompute experts;  // none: moe_ffn
  RouterOptions router;
};

// The thresholds of layers 0 … num_layers - 1 for the coming step.
RoutingInputs routing_inputs(const ThresholdController& controller, int64_t num_layers);

// Of each sample of a batch.
struct SampleLosses {
  at::Tensor loss_B;       // f32: whose mean is the model's validation_loss
  at::Tensor selected_BL;  // int64: its token-expert pairs of each layer; [B, 0] of a dense model
};

struct BatchLosses {
  at::Tensor total;                  // what is differentiated
  NamedTensors values;               // unweighted, detached, f32 []: "lm_loss", …
  ActivationStatistics activations;  // no layers for a dense model
  // int64 [1, kMassBins], or [L, kMassBins], as RoutingInputs::router asks; else undefined.
  at::Tensor masses_CM;
  std::optional<SampleLosses> samples;  // of a batch that holds "group" (Model::validation_groups)

  // std::invalid_argument where there is none of this name.
  const at::Tensor& value(std::string_view name) const { return find_tensor(values, name, "BatchLosses"); }
};

// int64 [B, L]: token-expert pairs of each of the `samples` that a batch's tokens are equal parts of.
at::Tensor selected_by_sample(const std::vector<RouteOutput>& layers, int64_t samples);

// Adds the routers' losses of a batch's layers, each summed over layers and divided by their number:
// "load_balance_loss", "dynamic_loss", "router_z_loss"; and counts who was chosen, and who would be.
void add_router_losses(const std::vector<RouteOutput>& layers, const RoutingInputs& inputs,
                       const LossConfig& weights, BatchLosses& losses);

}  // namespace dtopp
