// Adds up the results of a validation over its batches, on all ranks.
#pragma once

#include "dtopp/distributed/collectives.h"
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

// The result for one source of the held-out samples (TrainingData::validation_sources).
struct ValidationSource {
  std::string name;
  double loss = 0;
  moe::ActivationStatistics activations;
};

struct ValidationResult {
  double loss = 0;  // mean of the model's validation_loss
  moe::ActivationStatistics activations;
  std::vector<ValidationSource> sources{};  // empty: not reported separately
  // The sources' losses weighted by their shares of the training mixture, if all have one.
  std::optional<double> mixture_loss{};
  std::vector<ValidationGroup> groups{};  // groups with samples
  // The loss of the parameters' EMA, if the model has one, with thresholds at which it uses the target number
  // of experts. Trainer::validate sets it.
  std::optional<double> ema_loss{};
};

class ValidationSums {
 public:
  // For the samples of `sources`, at least one per source, in batches of `batch_size`. The last batch of a
  // source may be smaller. `model` must outlive this object.
  ValidationSums(const Model& model, int64_t num_experts, std::vector<HeldOutSource> sources,
                 int64_t batch_size, const at::Device& device);

  int64_t num_batches() const { return std::ssize(batches_); }
  // Batch b contains size_of(b) samples from first_sample(b) of the held-out order on.
  uint64_t first_sample(int64_t batch) const { return batches_.at(batch).first; }
  int64_t size_of(int64_t batch) const { return batches_.at(batch).size; }

  // Call it once for each batch, on any one rank. `data` and `losses` belong to the batch. Throws
  // std::invalid_argument if the model has validation groups and `losses` has no SampleLosses.
  void add(int64_t batch, const Batch& data, const BatchLosses& losses);
  // The result over the batches of all ranks, on every rank. Its bits do not depend on the distribution of
  // batches over ranks.
  //
  // Collective: every rank of `ranks`, in the same order
  ValidationResult result(distributed::Collectives& ranks) const;

 private:
  struct BatchPlace {
    size_t source;
    uint64_t first;     // sample of the held-out order
    int64_t size, row;  // number of samples, and those in earlier batches
  };

  std::optional<double> mixture_loss(const std::vector<ValidationSource>& results) const;
  std::vector<ValidationGroup> groups(const Tensor& samples_SN) const;

  const Model& model_;
  int64_t num_experts_, samples_ = 0;
  std::vector<HeldOutSource> sources_;
  std::vector<BatchPlace> batches_;
  Tensor losses_B_;    // f64, per batch: loss times number of samples
  Tensor samples_SN_;  // f64, per sample: group, loss and pairs per layer; [0, N] without groups
  std::vector<moe::ActivationStatistics> activations_;  // per source
};

}  // namespace dtopp::models
