#include "dtopp/base/safetensors/tensor_bytes.h"

#include <algorithm>
#include <array>
#include <utility>

namespace dtopp {
namespace {

constexpr std::array<std::pair<std::string_view, uint64_t>, 17> kDtypeBytes = {{
    {"F64", 8},
    {"F32", 4},
    {"F16", 2},
    {"BF16", 2},
    {"F8_E4M3", 1},
    {"F8_E5M2", 1},
    {"F8_E8M0", 1},
    {"I64", 8},
    {"I32", 4},
    {"I16", 2},
    {"I8", 1},
    {"U64", 8},
    {"U32", 4},
    {"U16", 2},
    {"U8", 1},
    {"BOOL", 1},
    {"C64", 8},
}};

}  // namespace

uint64_t element_bytes(std::string_view dtype) {
  const auto found = std::ranges::find(kDtypeBytes, dtype, &std::pair<std::string_view, uint64_t>::first);
  return found == kDtypeBytes.end() ? 0 : found->second;
}

std::optional<uint64_t> tensor_bytes(uint64_t element, const std::vector<int64_t>& shape) {
  uint64_t bytes = element;
  for (const int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) return std::nullopt;
  return bytes;
}

}  // namespace dtopp
