// What of a checkpoint a model is run with: tensors in fp32, and thresholds.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/models/batch_losses.h"
#include "dtopp/models/model.h"

namespace dtopp {

// A tensor's bytes by its name and shape: Checkpoint::parameter or Checkpoint::average.
using ReadTensorBytes =
    std::function<std::span<const std::byte>(const std::string& name, const std::vector<int64_t>& shape)>;

// All of `specs`, copied to the device.
ParameterLookup load_parameters(const std::vector<ParameterSpec>& specs, const ReadTensorBytes& read,
                                const at::Device& device);

// p of each layer as the checkpoint has it; none for a dense model.
RoutingInputs load_thresholds(const Checkpoint& checkpoint, const RunConfig& config,
                              const at::Device& device);

}  // namespace dtopp
