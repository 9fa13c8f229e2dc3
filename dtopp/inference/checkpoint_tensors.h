// Loads the tensors of a checkpoint that inference needs: parameters and the router.
#pragma once

#include <vector>

#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/models/batch_losses.h"
#include "dtopp/models/model.h"

namespace dtopp::inference {

// kRaw: the parameters that the optimizer updates. kEma: their exponential moving average (EMA).
enum class ParameterKind { kRaw, kEma };

// Copies the tensors of all `specs` to the device in `type`, those that training keeps in fp32 as fp32.
// Throws CheckpointError if one is missing or has another shape.
models::ParameterLookup load_parameters(const checkpoint::Checkpoint& checkpoint, ParameterKind kind,
                                        const std::vector<parameters::ParameterSpec>& specs,
                                        const at::Device& device, at::ScalarType type = at::kFloat);

// Returns the router with the state of the checkpoint. A dense model has none.
moe::Routing load_routing(const checkpoint::Checkpoint& checkpoint, const config::RunConfig& config,
                          const at::Device& device);

}  // namespace dtopp::inference
