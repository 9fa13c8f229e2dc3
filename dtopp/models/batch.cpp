#include "dtopp/models/batch.h"

#include <algorithm>

#include "dtopp/ops/core/host_copy.h"

namespace dtopp::models {

bool Batch::has(std::string_view name) const {
  return std::ranges::any_of(tensors, [&](const auto& tensor) { return tensor.first == name; });
}

Batch Batch::to(const at::Device& device) const {
  Batch moved{position, {}};
  for (const auto& [name, tensor] : tensors) moved.tensors.emplace_back(name, ops::to_device(tensor, device));
  return moved;
}

}  // namespace dtopp::models
