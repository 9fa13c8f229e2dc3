#include "dtopp/ops/core/simd.h"

#include <ATen/Version.h>

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

Simd widest_simd() {
  static const Simd widest = [] {
#if defined(__x86_64__)
    const std::string allowed = at::get_cpu_capability();
    const bool has_avx512 = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512vl");
    if (allowed == "AVX512" && has_avx512) return Simd::kAvx512;
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if ((allowed == "AVX512" || allowed == "AVX2") && has_avx2) return Simd::kAvx2;
#endif
    return Simd::kBaseline;
  }();
  return widest;
}

bool has_avx512_bf16() {
#if defined(__x86_64__)
  static const bool has = widest_simd() == Simd::kAvx512 && __builtin_cpu_supports("avx512bf16");
  return has;
#else
  return false;
#endif
}

}  // namespace dtopp::ops
