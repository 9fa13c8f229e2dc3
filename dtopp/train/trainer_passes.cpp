// Implements a rank's forward and backward passes over its micro-batches.
#include <string>
#include <string_view>

#include <ATen/record_function.h>

#include "dtopp/base/steady_seconds.h"
#include "dtopp/distributed/sharding/tree_sum.h"
#include "dtopp/train/nonfinite_watch.h"
#include "dtopp/train/step_decision.h"
#include "dtopp/train/trainer.h"

namespace dtopp::train {

// The ranks of an EP group take its micro-batches in turn. The micro-batches that they process at a time are
// an aligned range of the step's (tree_sum.h).
StepSums Trainer::accumulate_gradients(const moe::Routing& inputs, const StopToken& stop) {
  StepSums sums;
  sums.activations = moe::ActivationStatistics(model_.num_routed_layers);
  sums.max_assignments_L =
      at::zeros({model_.num_routed_layers}, at::device(store_.device()).dtype(at::kLong));
  const distributed::ParallelDims dims = groups_.dims();
  const int64_t rank = groups_.rank();
  const distributed::MicroBatchRange range =
      distributed::local_micro_batches(micro_batches(), dims.edp_rank(rank), dims.edp_size(), dims.ep_size);
  if (range.begin >= range.end) store_.finish_all_gather();
  store_.begin_step((range.end - range.begin + dims.ep_size - 1) / dims.ep_size);
  for (int64_t first = range.begin; first < range.end; first += dims.ep_size) {
    sums.stop_requested = sums.stop_requested || stop.stop_requested();
    if (is_abandoned(sums, groups_.size())) return sums;
    const int64_t micro_batch = first + dims.ep_rank(rank);
    if (micro_batch < range.end) {
      accumulate_micro_batch(micro_batch, inputs, sums);
    } else {
      forward_empty();
    }
    RECORD_USER_SCOPE(std::string(kGradientSumsScope));
    store_.end_micro_batch();
  }
  RECORD_USER_SCOPE(std::string(kGradientSumsScope));
  store_.finish_gradients();
  return sums;
}

void Trainer::accumulate_micro_batch(int64_t micro_batch, const moe::Routing& inputs, StepSums& sums) {
  RECORD_USER_SCOPE(std::string(kMicroBatchScope) + std::to_string(micro_batch));
  const int64_t size = config_.training.micro_batch_size;
  const double wait = steady_seconds();
  const int64_t position = state_.sample_position + micro_batch * size;
  const models::Batch batch = data_.training->read(static_cast<uint64_t>(position), size);
  sums.data_seconds += steady_seconds() - wait;
  const models::BatchLosses losses = losses_(batch.to(store_.device()), inputs);
  {
    RECORD_USER_SCOPE(std::string(kBackwardScope));
    (losses.total / static_cast<double>(micro_batches())).backward();
  }
  sums.add_losses(micro_batch, losses.total.detach(), losses.values);
  sums.activations.add(losses.activations);
  sums.add_statistics(losses.statistics, losses.logit_sums);
  if (model_.num_routed_layers > 0)
    sums.max_assignments_L = at::maximum(sums.max_assignments_L, losses.activations.num_assignments());
  if (loss_names_.empty()) {
    for (const auto& [name, value] : losses.values) loss_names_.push_back(name);
  }
}

// Layer after layer: other ranks need the experts of a layer before they gather the parameters of later ones.
void Trainer::forward_empty() const {
  const auto ends_with = [](const parameters::ParameterSpec& spec, std::string_view end) {
    return spec.role == parameters::ParameterRole::kExpert && spec.name.ends_with(end);
  };
  at::Tensor x_TD, gates_TE, gate_up;
  int64_t layer = 0;
  for (const parameters::ParameterSpec& spec : store_.specs()) {
    const at::Tensor weight = store_.model_param(spec.name);
    if (!dispatcher_) continue;
    if (ends_with(spec, "gate_up_proj")) gate_up = weight;
    if (!ends_with(spec, "down_proj")) continue;
    if (!x_TD.defined()) {
      const auto options = weight.options();
      x_TD = at::empty({0, config_.model.hidden_size}, options).requires_grad_();
      gates_TE = at::empty({0, config_.model.num_experts}, options.dtype(at::kFloat)).requires_grad_();
    }
    x_TD = dispatcher_->forward(layer++, x_TD, gates_TE, gate_up, weight,
                                config_.training.recompute != config::Recompute::kNone);
  }
  if (x_TD.defined() && at::GradMode::is_enabled()) x_TD.sum().backward();
}

}  // namespace dtopp::train
