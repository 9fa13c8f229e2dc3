// Fills the parameters of a new run from the checkpoint of another one (training.initialize_from).
//
// Each tensor is the checkpoint's, with three exceptions:
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
#pragma once

#include <vector>

#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/config/run_config.h"
#include "dtopp/moe/router.h"
#include "dtopp/ops/core/torch.h"
#include "dtopp/parameters/parameters.h"

namespace dtopp::train {

class InitialParameters {
 public:
  // `checkpoint` and `here`, the new run's configuration, must outlive this object.
  InitialParameters(const checkpoint::Checkpoint& checkpoint, const config::RunConfig& here)
      : checkpoint_(checkpoint), there_(checkpoint.config()), here_(here) {}

  // Throws UsageError with the first tensor that the checkpoint lacks or has with another shape.
  void require_fit(const std::vector<parameters::ParameterSpec>& specs) const;
  // Fills an f32 tensor of the spec's shape.
  void fill(const parameters::ParameterSpec& spec, at::Tensor& whole) const;
  void fill(moe::Router& router) const;

  // The configuration of the checkpoint's run.
  const config::RunConfig& there() const { return there_; }

 private:
  struct Stored;
  Stored stored(const parameters::ParameterSpec& spec) const;
  bool is_new(const parameters::ParameterSpec& spec) const;
  bool is_upcycled(const parameters::ParameterSpec& spec) const;
  int64_t slices() const;
  void fill_experts(const parameters::ParameterSpec& spec, const at::Tensor& dense, at::Tensor& whole) const;

  const checkpoint::Checkpoint& checkpoint_;
  config::RunConfig there_;
  const config::RunConfig& here_;
};

}  // namespace dtopp::train
