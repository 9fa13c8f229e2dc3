// Starts a run: its first parameters, the checks of all ranks, and a checkpoint to continue from.
#pragma once

#include "dtopp/base/progress.h"
#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/config/run_config.h"
#include "dtopp/distributed/collectives.h"
#include "dtopp/models/batch.h"
#include "dtopp/parameters/parameters.h"
#include "dtopp/runs/run_directory.h"
#include "dtopp/train/trainer.h"

namespace dtopp::train {

// Fills the parameters of a new run from the checkpoint of another one (training.initialize_from). Each
// tensor is the checkpoint's, with three exceptions:
//
// - theta begins at 1 if the checkpoint's routing.normalization is fixed. P and the gates of the same experts
//   then stay as they are.
// - The router of a dense checkpoint's copy is random, with theta at 1.
// - Its experts are copies of the dense FFN. If that has m times ffn_hidden_size, experts m c to m c + m - 1
//   are the m slices of copy c, with W_down times m and equal rows in the router.
//
// The state of routing.expert_normalization is the checkpoint's, too, if both runs have one: the router's
// parameters fit these means alone. Other state of the router begins anew.
//
// With gates that sum to 1, a token that uses whole copies then gets the output of the dense FFN.
// training.upcycle_noise adds noise to the copies.
//
// Source:        sparse upcycling (arXiv 2212.05055); slices with equal rows (arXiv 2410.07524)
class InitialParameters {
 public:
  // `checkpoint` and `here`, the new run's configuration, must outlive this object.
  InitialParameters(const checkpoint::Checkpoint& checkpoint, const config::RunConfig& here)
      : checkpoint_(checkpoint), source_config_(checkpoint.config()), here_(here) {}

  // Throws UsageError with the first tensor that the checkpoint lacks or has with another shape.
  void require_fit(const std::vector<parameters::ParameterSpec>& specs) const;
  // Fills an f32 tensor of the spec's shape.
  void fill(const parameters::ParameterSpec& spec, Tensor& whole) const;

  const checkpoint::Checkpoint& checkpoint() const { return checkpoint_; }
  const config::RunConfig& source_config() const { return source_config_; }  // of the checkpoint's run

 private:
  // The name and the shape of the tensor in the checkpoint that a parameter is made of.
  std::pair<std::string, std::vector<int64_t>> stored(const parameters::ParameterSpec& spec) const;
  bool is_new(const parameters::ParameterSpec& spec) const;
  bool is_upcycled(const parameters::ParameterSpec& spec) const {
    return spec.role == parameters::ParameterRole::kExpert && source_config_.model.is_dense();
  }
  int64_t slices() const;
  void fill_experts(const parameters::ParameterSpec& spec, const Tensor& dense, Tensor& whole) const;

  const checkpoint::Checkpoint& checkpoint_;
  config::RunConfig source_config_;
  const config::RunConfig& here_;
};

// Throw RanksDiffer if a rank has another configuration than rank 0; computes with other kernels, on another
// processor or by DTOPP_MOE_KERNELS (unless parallel.reproducible is false); or has opened other data.
// Collective: every rank, in the same order.
void check_configuration(const config::RunConfig& config, distributed::Collectives& ranks);
void check_kernels(const config::RunConfig& config, const at::Device& device,
                   distributed::Collectives& ranks);
void check_data(const models::TrainingData& data, distributed::Collectives& ranks);

// Restores or initializes the trainer and logs the source: the run's own newest checkpoint before the step
// `before`, which is returned, another run's (training.initialize_from, cooldown_from), or the seed.
//
// Throws:        UsageError with the key and the difference, if the run's own checkpoint has another
//                configuration, data or tokenizer; if another run's checkpoint has another model, or for a
//                cool-down another configuration or no step left; errors of Checkpoint
// Collective:    every rank
std::optional<fs::path> begin_or_resume(Trainer& trainer, const config::RunConfig& config,
                                        const ConsoleLog& log, int64_t before = runs::kAnyStep);

// Finds the run's newest_checkpoint on rank 0 and opens it on all ranks.
//
// Ranks that read the same files as rank 0 each verify a part of them. A rank with separate copies verifies
// all of its own.
//
// Throws:        errors of the search on rank 0; CheckpointError if the run has lost its checkpoints; errors
//                of Checkpoint if a copy is damaged; RanksDiffer if a copy is of another checkpoint
// Collective:    every rank
std::optional<checkpoint::Checkpoint> checkpoint_to_resume(const fs::path& run,
                                                           distributed::Collectives& ranks,
                                                           const ConsoleLog& log,
                                                           int64_t before = runs::kAnyStep);

}  // namespace dtopp::train
