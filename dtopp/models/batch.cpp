#include "dtopp/models/batch.h"

#include <algorithm>
#include <stdexcept>

#include "dtopp/ops/core/host_copy.h"

namespace dtopp {

const at::Tensor& find_tensor(const NamedTensors& tensors, std::string_view name, const char* owner) {
  for (const auto& [candidate, tensor] : tensors) {
    if (candidate == name) return tensor;
  }
  throw std::invalid_argument(std::string(owner) + ": no tensor is named " + std::string(name));
}

bool Batch::has(std::string_view name) const {
  return std::ranges::any_of(tensors, [&](const auto& tensor) { return tensor.first == name; });
}

Batch Batch::to(const at::Device& device) const {
  Batch moved{position, {}};
  for (const auto& [name, tensor] : tensors) moved.tensors.emplace_back(name, to_device(tensor, device));
  return moved;
}

}  // namespace dtopp
