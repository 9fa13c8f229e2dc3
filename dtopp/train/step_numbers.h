// The numbers of an optimiser step, gathered over its micro-batches into one vector: what the step is decided
// by (step_decision.h) and what is reported of it. Nobody decides by anything else, so that all who hold the
// same vector decide alike.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dtopp/moe/activation_statistics.h"

namespace dtopp {

// The sum of the losses of micro-batches, every one with the same number of tokens.
class LossSums {
 public:
  // total and the terms: f32 [], detached.
  void add(const at::Tensor& total, const std::vector<std::pair<std::string, at::Tensor>>& terms);
  const std::vector<std::string>& names() const { return names_; }
  const at::Tensor& sums() const { return sums_; }  // f64 [1 + terms]: the total first
  int64_t micro_batches() const { return micro_batches_; }

 private:
  std::vector<std::string> names_;
  at::Tensor sums_;
  int64_t micro_batches_ = 0;
};

// What the forward and backward passes of a step leave on its device.
struct StepSums {
  LossSums losses;
  at::Tensor most_pairs_L;  // int64: token-expert pairs of a micro-batch, at most; [0] of a dense model
  ActivationStatistics activations;
  double data_seconds = 0;  // spent waiting for data
  bool stop_asked = false;  // between two micro-batches: the others were left out
};

// What the host knows of a step's numbers before they have come.
struct StepShape {
  std::vector<std::string> loss_names;
  int64_t micro_batches = 0, tokens = 0, routed_layers = 0, num_experts = 0;

  int64_t num_losses() const { return 1 + static_cast<int64_t>(loss_names.size()); }
};

class StepNumbers {
 public:
  // Of a step all of whose micro-batches were added. grad_norm: []. halted: bool [], see StepResult.
  StepNumbers(const StepSums& sums, const at::Tensor& grad_norm, const at::Tensor& halted);
  // As they came to the host: what values() of other ones held.
  StepNumbers(StepShape shape, at::Tensor values) : shape_(std::move(shape)), values_(std::move(values)) {}

  const StepShape& shape() const { return shape_; }
  // f64, on the step's device. Whole numbers are exact below 2^53; the norm is there as its square, which an
  // f64 holds exactly, so that those of disjoint parameters can be added.
  const at::Tensor& values() const { return values_; }
  // How many there are.
  static int64_t size(const StepShape& shape);

  at::Tensor loss_sums() const { return part(0, shape_.num_losses()); }  // the total first
  at::Tensor grad_norm() const { return part(norm_at(), 1)[0].sqrt(); }
  at::Tensor halted() const { return part(norm_at() + 1, 1)[0].ne(0); }
  at::Tensor most_pairs_L() const { return part(norm_at() + 2, shape_.routed_layers); }
  at::Tensor selected_L() const { return counts_LE().sum(1); }
  ActivationStatistics activations() const;

 private:
  int64_t norm_at() const { return shape_.num_losses(); }
  int64_t sums_at() const { return norm_at() + 2 + shape_.routed_layers; }
  at::Tensor counts_LE() const;
  at::Tensor part(int64_t begin, int64_t size) const { return values_.narrow(0, begin, size); }

  StepShape shape_;
  at::Tensor values_;
};

}  // namespace dtopp
