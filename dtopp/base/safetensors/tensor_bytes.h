// The sizes that the safetensors format prescribes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace dtopp {

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of Hugging Face's reader

// Bytes per element; 0 for an unknown dtype.
uint64_t element_bytes(std::string_view dtype);

// Bytes per tensor; nullopt if the product overflows.
std::optional<uint64_t> tensor_bytes(uint64_t element, const std::vector<int64_t>& shape);

}  // namespace dtopp
