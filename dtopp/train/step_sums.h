// Adds up the results of a rank's forward and backward passes in one step.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dtopp/moe/activation_statistics.h"
#include "dtopp/train/step_numbers.h"

namespace dtopp::train {

// The properties of a step that the host knows before its numbers arrive, the same on every rank.
struct StepShape {
  std::vector<std::string> loss_names;
  int64_t micro_batches = 0, tokens = 0;  // of all ranks
  int64_t chunks = 0;                     // gradient norms (distributed/sharding/shard_layout.h)
  int64_t routed_layers = 0, num_experts = 0;
  std::vector<int64_t> statistics_shape = {0}, logit_sums_shape = {0};  // of the router (moe/router.h)

  StepSchema schema() const;
};

// The tensors are on the rank's device.
struct StepSums {
  // Per micro-batch: its index in the step, and f64 [1 + terms] with the total first.
  std::vector<std::pair<int64_t, at::Tensor>> losses;
  // int64: the largest number of token-expert pairs in a micro-batch, per layer; [0] for a dense model.
  at::Tensor max_assignments_L;
  moe::ActivationStatistics activations;
  // int64, of the router; undefined before the first, and if the router needs none.
  at::Tensor statistics, logit_sums;
  double data_seconds = 0;  // time spent waiting for data
  bool stop_requested = false;

  // Adds the losses of a micro-batch. total and terms: f32 [], detached.
  void add_losses(int64_t micro_batch, const at::Tensor& total, const ops::NamedTensors& terms);
  // Each may be undefined: none.
  void add_statistics(const at::Tensor& of_micro_batch, const at::Tensor& logit_sums_of_micro_batch);

  // The fields of StepShape::schema(). squared_norms: of the gradients, f64 [chunks]; each is 0 on all ranks
  // but one. overflowed: bool [], see StepResult.
  ops::NamedTensors fields(const StepShape& shape, const at::Tensor& squared_norms,
                           const at::Tensor& overflowed) const;
};

}  // namespace dtopp::train
