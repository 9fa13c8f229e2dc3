// Updates the main parameters of this rank from their gradients.
//
//   adamw  AdamW with decoupled weight decay (Loshchilov and Hutter 2019), for every parameter
//   muon   Muon for the matrices of attention and feed-forward layers, also of experts; AdamW for embeddings,
//          the first and last matrix, routers, theta, gains and biases
//
// Muon as in torch.optim.Muon with adjust_lr_fn "match_rms_adamw", for a gradient g and each matrix by
// itself:
//
//   m <- m + (1 - momentum) (g - m)
//   W <- (1 - lr weight_decay) W - 0.2 sqrt(max(rows, columns)) lr orthogonalize(g + momentum (m - g))
//
// An optimizer has no tensors of its own. ParameterStore holds one f32 tensor per parameter and slot, sharded
// as the parameter, and checkpoints hold it as "<parameter>.<slot>".
#pragma once

#include <span>

#include "dtopp/config/run_config.h"
#include "dtopp/distributed/shard_layout.h"
#include "dtopp/parameters/parameters.h"

namespace dtopp::optim {

// Computes the learning rate of each step. All schedules rise linearly from 0 for warmup_steps. Then
//
//   cosine    falls along half a cosine to min_lr at the last step
//   linear    falls linearly to min_lr at the last step
//   constant  stays
//   wsd       stays until decay_steps before the end, then falls linearly to min_lr at the last step

struct LearningRates {
  double lr = 0;
  double router = 0;  // of the routers' matrices and theta
};

// The rates of a step. The router's is lr times optimizer.router_lr_factor and, within the first
// router_warmup_steps, times the share of them that has passed.
LearningRates learning_rates(const config::OptimizerConfig& config, int64_t step, int64_t steps);
// The first of them. `step` counts from 1 to `steps`.
double learning_rate(const config::OptimizerConfig& config, int64_t step, int64_t steps);

// This rank's part of one parameter: f32 [local shard].
struct ParameterShard {
  const parameters::ParameterSpec* spec = nullptr;
  Tensor main_param, gradient;
  std::vector<Tensor> slots;  // in the order of Optimizer::slots
  // Ranges of the local shard to update one by one: bits must not depend on the sharding.
  std::vector<distributed::ElementRange> updates;
};

struct StepScalars {
  LearningRates rates;
  Tensor divisor;  // f32 []: divides the gradients
  Tensor applied;  // bool []: if false, the step changes nothing
  Tensor updates;  // f32 []: updates applied so far, this one included
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Names of the state tensors of a parameter; each has the parameter's shape.
  virtual std::vector<std::string> slots(const parameters::ParameterSpec& spec) const = 0;
  virtual distributed::ShardPolicy shard_policy(const parameters::ParameterSpec& /*spec*/) const {
    return distributed::ShardPolicy::kElements;
  }
  // FLOPs of a step for the whole parameter, without those that an element costs.
  virtual double flops(const parameters::ParameterSpec& /*spec*/) const { return 0; }
  // Updates main_param and slots in place. Weight decay applies to specs with weight_decay(). The host does
  // not wait for the device.
  virtual void step(std::span<const ParameterShard> shards, const StepScalars& scalars) const = 0;
};

// bf16: the precision of Muon's products; else f32.
std::unique_ptr<Optimizer> make_optimizer(const config::OptimizerConfig& config, bool bf16 = false);

}  // namespace dtopp::optim
