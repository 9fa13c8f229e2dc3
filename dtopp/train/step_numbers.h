// Gathers the numbers of an optimizer step, over its micro-batches on all ranks, into one vector.
//
// All decisions about a step (step_decision.h) and all reports of it use this vector only. Every rank holds
// the same vector, so all ranks decide alike.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dtopp/distributed/collectives/collectives.h"
#include "dtopp/moe/activation_statistics.h"

namespace dtopp {

// The properties of a step that the host knows before its numbers arrive.
struct StepShape {
  std::vector<std::string> loss_names;
  int64_t micro_batches = 0, tokens = 0;  // of all ranks
  int64_t routed_layers = 0, num_experts = 0;
  int64_t histogram_rows = 0;  // histograms of cumulative probabilities: one per controller, or 0

  int64_t num_losses() const { return 1 + static_cast<int64_t>(loss_names.size()); }
};

// Results of a rank's forward and backward passes, on its device.
struct StepSums {
  // Per micro-batch: its index in the step, and f64 [1 + terms] with the total first.
  std::vector<std::pair<int64_t, at::Tensor>> losses;
  // int64: the largest number of token-expert pairs in a micro-batch, per layer; [0] for a dense model.
  at::Tensor max_assignments_L;
  ActivationStatistics activations;
  at::Tensor prob_histogram_CM;  // int64; undefined before the first, and if the model has no controller
  double data_seconds = 0;       // time spent waiting for data
  bool stop_requested = false;

  // Adds the losses of a micro-batch. total and terms: f32 [], detached.
  void add_losses(int64_t micro_batch, const at::Tensor& total,
                  const std::vector<std::pair<std::string, at::Tensor>>& terms);
  void add_prob_histogram(const at::Tensor& of_micro_batch_CM);  // undefined: none
};

class StepNumbers {
 public:
  // Combines the sums of a step whose micro-batches were all added. squared_norms: of the gradients, f64;
  // each entry is 0 on all ranks but one. overflowed: bool [], see StepResult. Collective.
  StepNumbers(StepShape shape, const StepSums& sums, const at::Tensor& squared_norms,
              const at::Tensor& overflowed, Collectives& ranks);
  // Rebuilds the numbers on the host from values() of a step, without cumulative probabilities.
  StepNumbers(StepShape shape, at::Tensor values) : shape_(std::move(shape)), values_(std::move(values)) {}

  const StepShape& shape() const { return shape_; }
  // f64 on the step's device: all numbers but the cumulative probabilities. Whole numbers are exact below
  // 2^53.
  const at::Tensor& values() const { return values_; }
  // The length of values().
  static int64_t size(const StepShape& shape);

  at::Tensor loss_sums() const { return part(0, shape_.num_losses()); }  // the total first
  at::Tensor grad_norm() const { return part(norm_at(), 1)[0].sqrt(); }
  at::Tensor overflowed() const { return part(norm_at() + 1, 1)[0].ne(0); }
  at::Tensor stop_requested() const { return part(norm_at() + 2, 1)[0].ne(0); }  // on any rank
  at::Tensor max_assignments_L() const { return part(norm_at() + 3, shape_.routed_layers); }
  at::Tensor num_assignments_L() const { return activations().num_assignments(); }
  ActivationStatistics activations() const;
  // f64, for the controller; undefined if there are none.
  const at::Tensor& prob_histogram_CM() const { return prob_histogram_CM_; }

 private:
  int64_t norm_at() const { return shape_.num_losses(); }
  at::Tensor part(int64_t begin, int64_t size) const { return values_.narrow(0, begin, size); }

  StepShape shape_;
  at::Tensor values_, prob_histogram_CM_;
};

}  // namespace dtopp
