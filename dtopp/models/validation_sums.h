// Adds up the results of a validation over its batches, on all ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/distributed/collectives/collectives.h"
#include "dtopp/models/batch.h"
#include "dtopp/models/batch_losses.h"
#include "dtopp/models/model.h"

namespace dtopp::models {

// The result for the held-out samples of one group (Model::validation_groups).
struct ValidationGroup {
  std::string name;
  double loss = 0;                       // mean over the group's samples
  std::vector<double> active_experts_L;  // per token, by routed layer
};

struct ValidationResult {
  double loss = 0;  // mean of the model's validation_loss
  moe::ActivationStatistics activations;
  std::vector<ValidationGroup> groups{};  // groups with samples
  // The loss of the parameters' EMA, if the model has one, with thresholds at which it uses the target number
  // of experts. Trainer::validate sets it.
  std::optional<double> ema_loss{};
};

class ValidationSums {
 public:
  // For the first `samples` > 0 samples in batches of `batch_size`. The last batch may be smaller. `model`
  // must outlive this object.
  ValidationSums(const Model& model, int64_t num_experts, int64_t samples, int64_t batch_size,
                 const at::Device& device);

  int64_t num_batches() const { return losses_B_.numel(); }
  // Batch b contains size_of(b) samples from first_sample(b) on.
  int64_t first_sample(int64_t batch) const { return batch * batch_size_; }
  int64_t size_of(int64_t batch) const { return std::min(batch_size_, samples_ - first_sample(batch)); }

  // Call it once for each batch, on any one rank. `data` and `losses` belong to the batch. Throws
  // std::invalid_argument if the model has validation groups and `losses` has no SampleLosses.
  void add(int64_t batch, const Batch& data, const BatchLosses& losses);
  // The result over the batches of all ranks, on every rank. Its bits do not depend on the distribution of
  // batches over ranks.
  //
  // Collective: every rank of `ranks`, in the same order
  ValidationResult result(distributed::Collectives& ranks) const;

 private:
  std::vector<ValidationGroup> groups(const at::Tensor& samples_SN) const;

  const Model& model_;
  int64_t num_experts_, samples_, batch_size_;
  at::Tensor losses_B_;    // f64, per batch: loss times number of samples
  at::Tensor samples_SN_;  // f64, per sample: group, loss and pairs per layer; [0, N] without groups
  moe::ActivationStatistics activations_;
};

}  // namespace dtopp::models
