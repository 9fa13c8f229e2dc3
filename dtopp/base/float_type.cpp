#include "dtopp/base/float_type.h"

#include <bit>
#include <cstring>
#include <stdexcept>

namespace dtopp {
namespace {

// Shifts exponent and fraction into place; the factor 2^112 corrects the exponent bias, also for subnormal
// numbers.
float from_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t rest = static_cast<uint32_t>(half & 0x7fffU) << 13;
  if ((half & 0x7c00U) == 0x7c00U) return std::bit_cast<float>(sign | 0x7f800000U | rest);
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(std::bit_cast<float>(rest) * 0x1p112F));
}

float from_bfloat16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

template <float (*kConvert)(uint16_t)>
void widen_each(std::span<const std::byte> bytes, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + sizeof(bits) * i, sizeof(bits));
    out[i] = kConvert(bits);
  }
}

template <class Word>
bool none_has_all(Word exponent, std::span<const std::byte> bytes) {
  bool any = false;
  for (size_t i = 0; i < bytes.size() / sizeof(Word); ++i) {
    Word word = 0;
    std::memcpy(&word, bytes.data() + sizeof(Word) * i, sizeof(Word));
    any |= (word & exponent) == exponent;
  }
  return !any;
}

}  // namespace

uint64_t size_of(FloatType type) { return type == FloatType::kF32 ? 4 : 2; }

void widen(FloatType type, std::span<const std::byte> bytes, std::span<float> out) {
  if (bytes.size() != out.size() * size_of(type)) throw std::invalid_argument("widen: sizes differ");
  if (type == FloatType::kF32) {
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  } else if (type == FloatType::kF16) {
    widen_each<from_half>(bytes, out);
  } else {
    widen_each<from_bfloat16>(bytes, out);
  }
}

bool all_finite(FloatType type, std::span<const std::byte> bytes) {
  if (type == FloatType::kF32) return none_has_all<uint32_t>(0x7f800000U, bytes);
  return none_has_all<uint16_t>(type == FloatType::kF16 ? 0x7c00U : 0x7f80U, bytes);
}

}  // namespace dtopp
