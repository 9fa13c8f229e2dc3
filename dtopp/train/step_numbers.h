// The numbers of an optimiser step, gathered over its micro-batches on all ranks into one vector: what the
// step is decided by (step_decision.h) and what is reported of it. Nobody decides by anything else, so that
// all ranks, which hold the same vector, decide alike.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dtopp/distributed/collectives/collectives.h"
#include "dtopp/moe/activation_statistics.h"

namespace dtopp {

// What the host knows of a step's numbers before they have come.
struct StepShape {
  std::vector<std::string> loss_names;
  int64_t micro_batches = 0, tokens = 0;  // of all ranks
  int64_t ranks = 1;
  int64_t routed_layers = 0, num_experts = 0;
  int64_t mass_rows = 0;  // histograms of masses: those of the controllers, or none

  int64_t num_losses() const { return 1 + static_cast<int64_t>(loss_names.size()); }
};

// What the forward and backward passes of a rank's micro-batches leave on its device.
struct StepSums {
  // Of each of its micro-batches: the place in the step's order, and f64 [1 + terms]: the total first.
  std::vector<std::pair<int64_t, at::Tensor>> losses;
  // int64: token-expert pairs of a micro-batch, at most; [0] of a dense model. Where micro-batches are cut,
  // of a part times their number.
  at::Tensor most_pairs_L;
  int64_t parts = 1;  // that each micro-batch was cut into
  ActivationStatistics activations;
  at::Tensor masses_CM;     // int64; undefined before the first, and where the model has no controller
  double data_seconds = 0;  // spent waiting for data
  bool stop_asked = false;

  // A micro-batch's, or one of its parts'; total and the terms: f32 [], detached.
  void add_losses(int64_t micro_batch, const at::Tensor& total,
                  const std::vector<std::pair<std::string, at::Tensor>>& terms);
  void add_masses(const at::Tensor& of_micro_batch_CM);  // undefined: none
};

class StepNumbers {
 public:
  // Of a step all of whose micro-batches were added. squared_norms: of the gradients, f64, each number not 0
  // on one rank at most; halted: bool [], see StepResult. Collective.
  StepNumbers(StepShape shape, const StepSums& sums, const at::Tensor& squared_norms,
              const at::Tensor& halted, Collectives& ranks);
  // As they came to the host: what values() of other ones held; without masses.
  StepNumbers(StepShape shape, at::Tensor values) : shape_(std::move(shape)), values_(std::move(values)) {}

  const StepShape& shape() const { return shape_; }
  // f64, on the step's device, all but the masses. Whole numbers are exact below 2^53.
  const at::Tensor& values() const { return values_; }
  // How many there are.
  static int64_t size(const StepShape& shape);

  at::Tensor loss_sums() const { return part(0, shape_.num_losses()); }  // the total first
  at::Tensor grad_norm() const { return part(norm_at(), 1)[0].sqrt(); }
  at::Tensor halted() const { return part(norm_at() + 1, 1)[0].ne(0); }
  at::Tensor stop_asked() const { return part(norm_at() + 2, 1)[0].ne(0); }  // of any rank
  at::Tensor parts_R() const { return part(norm_at() + 3, shape_.ranks); }
  at::Tensor most_pairs_L() const { return part(norm_at() + 3 + shape_.ranks, shape_.routed_layers); }
  at::Tensor selected_L() const { return activations().selected(); }
  ActivationStatistics activations() const;
  // f64, for the controller; undefined where there are none.
  const at::Tensor& masses_CM() const { return masses_CM_; }

 private:
  int64_t norm_at() const { return shape_.num_losses(); }
  at::Tensor part(int64_t begin, int64_t size) const { return values_.narrow(0, begin, size); }

  StepShape shape_;
  at::Tensor values_, masses_CM_;
};

}  // namespace dtopp
