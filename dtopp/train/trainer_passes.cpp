// Implements a rank's forward and backward passes over its micro-batches.
#include <utility>

#include "dtopp/base/steady_seconds.h"
#include "dtopp/distributed/sharding/tree_sum.h"
#include "dtopp/train/step_decision.h"
#include "dtopp/train/trainer.h"

namespace dtopp {

// The ranks of an EP group take its micro-batches in turn. The micro-batches that they process at a time are
// an aligned range of the step's (tree_sum.h).
void Trainer::accumulate_gradients(const RoutingInputs& inputs, const StopToken& stop, StepSums& sums) {
  const ParallelDims dims = groups_.dims();
  const int64_t rank = groups_.rank();
  const MicroBatchRange range =
      local_micro_batches(micro_batches(), dims.edp_rank(rank), dims.edp_size, dims.ep_size);
  if (range.begin >= range.end) store_.finish_all_gather();
  store_.begin_step((range.end - range.begin + dims.ep_size - 1) / dims.ep_size * parts_);
  for (int64_t first = range.begin; first < range.end; first += dims.ep_size) {
    sums.stop_requested = sums.stop_requested || stop.stop_requested();
    if (is_abandoned(sums, groups_.size())) return;
    const int64_t micro = first + dims.ep_rank(rank);
    for (int64_t part = 0; part < parts_; ++part) {
      if (micro < range.end) {
        accumulate_part(micro, part, inputs, sums);
      } else {
        forward_empty(inputs);
      }
      store_.end_micro_batch();
    }
  }
  store_.finish_gradients();
}

StepSums Trainer::accumulate_what_fits(RoutingInputs& inputs, const StopToken& stop) {
  while (true) {
    inputs.capacity = capacity_per_part_L();
    StepSums sums;
    sums.parts = parts_;
    sums.activations = ActivationStatistics(model_.num_routed_layers);
    sums.max_assignments_L =
        at::zeros({model_.num_routed_layers}, at::device(store_.device()).dtype(at::kLong));
    try {
      accumulate_gradients(inputs, stop, sums);
      return sums;
    } catch (const c10::OutOfMemoryError&) {
      // Other ranks wait where they need this one: for its gradients. With experts shared out they may be in
      // the midst of a layer.
      if (groups_.dims().ep_size > 1 || !cut_micro_batches()) throw;
    }
  }
}

bool Trainer::cut_micro_batches() {
  const int64_t size = config_.training.micro_batch_size;
  if (parts_ == size) return false;
  do ++parts_;
  while (size % parts_ != 0);
  capacity_predictor_.forget();
  return true;
}

std::vector<int64_t> Trainer::capacity_per_part_L() const {
  std::vector<int64_t> capacity_L = capacity_predictor_.capacity_L();
  for (int64_t& capacity : capacity_L) capacity = std::max<int64_t>(capacity / parts_, 1);
  return capacity_L;
}

void Trainer::accumulate_part(int64_t micro_batch, int64_t part, const RoutingInputs& inputs,
                              StepSums& sums) {
  const int64_t size = config_.training.micro_batch_size / parts_;
  const double wait = steady_seconds();
  const int64_t position = state_.sample_position + (micro_batch * parts_ + part) * size;
  const Batch batch = data_.training_batch(static_cast<uint64_t>(position), size);
  sums.data_seconds += steady_seconds() - wait;
  const BatchLosses losses = losses_(batch.to(store_.device()), inputs);
  (losses.total / static_cast<double>(micro_batches() * parts_)).backward();
  sums.add_losses(micro_batch, losses.total.detach(), losses.values);
  sums.activations.add(losses.activations);
  sums.add_prob_histogram(losses.prob_histogram_CM);
  if (model_.num_routed_layers > 0)
    sums.max_assignments_L =
        at::maximum(sums.max_assignments_L, losses.activations.num_assignments() * parts_);
  if (loss_names_.empty()) {
    for (const auto& [name, value] : losses.values) loss_names_.push_back(name);
  }
}

void Trainer::forward_empty(const RoutingInputs& inputs) const {
  at::Tensor x_TD, gates_TE, gate_up;
  for (const ParameterSpec& spec : store_.specs()) {
    const at::Tensor weight = store_.model_param(spec.name);
    if (spec.role != ParameterRole::kExpert || !inputs.experts) continue;
    if (!gate_up.defined()) {
      gate_up = weight;
      continue;
    }
    if (!x_TD.defined()) {
      const auto options = weight.options();
      x_TD = at::empty({0, config_.model.hidden_size}, options).requires_grad_();
      gates_TE = at::empty({0, config_.model.num_experts}, options.dtype(at::kFloat)).requires_grad_();
    }
    x_TD = inputs.experts(x_TD, gates_TE, std::exchange(gate_up, at::Tensor()), weight, 0);
  }
  if (x_TD.defined() && at::GradMode::is_enabled()) x_TD.sum().backward();
}

}  // namespace dtopp
