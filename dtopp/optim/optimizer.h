// Updates the main parameters of this rank from their gradients.
//
// An optimizer has no tensors of its own. ParameterStore holds one f32 tensor per parameter and slot, sharded
// as the parameter, and checkpoints hold it as "<parameter>.<slot>".
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dtopp/config/optimizer_config.h"
#include "dtopp/distributed/sharding/shard_layout.h"
#include "dtopp/ops/core/torch.h"
#include "dtopp/optim/schedule.h"
#include "dtopp/parameters/parameters.h"

namespace dtopp::optim {

// This rank's part of one parameter: f32 [local shard].
struct ParameterShard {
  const parameters::ParameterSpec* spec = nullptr;
  at::Tensor main_param, gradient;
  std::vector<at::Tensor> slots;  // in the order of Optimizer::slots
  // Ranges of the local shard to update one by one: bits must not depend on the sharding.
  std::vector<distributed::ElementRange> updates;
};

struct StepScalars {
  LearningRates rates;
  at::Tensor divisor;  // f32 []: divides the gradients
  at::Tensor applied;  // bool []: if false, the step changes nothing
  at::Tensor updates;  // f32 []: updates applied so far, this one included
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Names of the state tensors of a parameter; each has the parameter's shape.
  virtual std::vector<std::string> slots(const parameters::ParameterSpec& spec) const = 0;
  virtual distributed::ShardPolicy shard_policy(const parameters::ParameterSpec& /*spec*/) const {
    return distributed::ShardPolicy::kElements;
  }
  // Updates main_param and slots in place. Weight decay applies to specs with weight_decay(). The host does
  // not wait for the device.
  virtual void step(std::span<const ParameterShard> shards, const StepScalars& scalars) const = 0;
};

std::unique_ptr<Optimizer> make_optimizer(const config::OptimizerConfig& config);

}  // namespace dtopp::optim
