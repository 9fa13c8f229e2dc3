// Loads the tensors of a checkpoint that inference needs: parameters in fp32, and routing thresholds.
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

// Returns the bytes of the tensor with this name and shape: Checkpoint::parameter or Checkpoint::average.
using ReadTensorBytes =
    std::function<std::span<const std::byte>(const std::string& name, const std::vector<int64_t>& shape)>;

// Copies the tensors of all `specs` to the device as fp32.
ParameterLookup load_parameters(const std::vector<ParameterSpec>& specs, const ReadTensorBytes& read,
                                const at::Device& device);

// Returns the checkpoint's threshold p of each layer. A dense model has none.
RoutingInputs load_thresholds(const Checkpoint& checkpoint, const RunConfig& config,
                              const at::Device& device);

}  // namespace dtopp
