// What a validation adds up over its batches, on whichever ranks they were computed.
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

namespace dtopp {

// The held-out samples of one group (Model::validation_groups).
struct ValidationGroup {
  std::string name;
  double loss = 0;                       // their mean
  std::vector<double> active_experts_L;  // per token, of each routed layer
};

struct ValidationResult {
  double loss = 0;  // mean of the model's validation_loss
  ActivationStatistics activations;
  std::vector<ValidationGroup> groups{};  // those that have samples
  // The loss of the parameters' moving average, where one is kept, with thresholds at which it uses the
  // target number of experts.
  std::optional<double> average_loss{};
};

class ValidationSums {
 public:
  // Of `samples` samples in batches of `batch_size`, the last one perhaps smaller.
  ValidationSums(const Model& model, int64_t num_experts, int64_t samples, int64_t batch_size,
                 const at::Device& device);

  int64_t num_batches() const { return losses_B_.numel(); }
  // Batch b holds as many from here on.
  int64_t first_sample(int64_t batch) const { return batch * batch_size_; }
  int64_t size_of(int64_t batch) const { return std::min(batch_size_, samples_ - first_sample(batch)); }

  void add(int64_t batch, const Batch& data, const BatchLosses& losses);
  // The same bits however the batches were shared out. Collective.
  ValidationResult result(Collectives& ranks) const;

 private:
  std::vector<ValidationGroup> groups(const at::Tensor& samples_SN) const;

  const Model& model_;
  int64_t num_experts_, samples_, batch_size_;
  at::Tensor losses_B_;    // f64: of each batch, times its samples
  at::Tensor samples_SN_;  // f64: of each sample its group, loss and pairs by layer; [0, N] without groups
  ActivationStatistics activations_;
};

}  // namespace dtopp
