#include "dtopp/models/costs.h"

#include <cmath>

#include "dtopp/config/config.h"

namespace dtopp::models {
namespace {

[[noreturn]] void throw_uncountable() {
  throw config::InvalidValue("model", "the product of its sizes exceeds 64 bits; make it smaller");
}

}  // namespace

uint64_t checked_product(std::initializer_list<uint64_t> factors) {
  uint64_t result = 1;
  for (const uint64_t factor : factors) {
    if (__builtin_mul_overflow(result, factor, &result)) throw_uncountable();
  }
  return result;
}

uint64_t checked_sum(std::initializer_list<uint64_t> terms) {
  uint64_t result = 0;
  for (const uint64_t term : terms) {
    if (__builtin_add_overflow(result, term, &result)) throw_uncountable();
  }
  return result;
}

uint64_t checked_round(double value) {
  if (!(value < 0x1p63)) throw_uncountable();
  return static_cast<uint64_t>(std::llround(value));
}

}  // namespace dtopp::models
