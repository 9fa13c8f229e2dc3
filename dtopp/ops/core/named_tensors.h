// Lists tensors by name, in order.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// The places where an object stores tensors, by name.
using StateTensors = std::vector<std::pair<std::string, Tensor*>>;

inline NamedTensors values_of(const StateTensors& stored) {
  NamedTensors values;
  for (const auto& [name, tensor] : stored) values.emplace_back(name, *tensor);
  return values;
}

// Throws std::invalid_argument with `owner` in its message if no tensor has this name.
inline const Tensor& find_tensor(const NamedTensors& tensors, std::string_view name, const char* owner) {
  for (const auto& [candidate, tensor] : tensors)
    if (candidate == name) return tensor;
  throw std::invalid_argument(std::string(owner) + ": no tensor is named " + std::string(name));
}

}  // namespace dtopp::ops
