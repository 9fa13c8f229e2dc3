#include "dtopp/ops/optimizer/squared_norms.h"

#include <array>

#include "dtopp/ops/core/call_op.h"
#include "dtopp/ops/core/simd.h"

namespace dtopp::ops {
namespace {

constexpr int64_t kSums = 32;
constexpr int64_t kPartsPerThread = 4;

// The square of a float is exact in double. With a fixed number of sums, the result does not depend on the
// width of vectors.
[[gnu::always_inline]] inline double sum_squares(const float* x, int64_t count) {
  std::array<double, kSums> sums{};
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums)
    for (int64_t lane = 0; lane < kSums; ++lane)
      sums[lane] += static_cast<double>(x[i + lane]) * static_cast<double>(x[i + lane]);
  for (int64_t lane = 0; i < count; ++lane, ++i)
    sums[lane] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (int64_t width = kSums / 2; width > 0; width /= 2)
    for (int64_t lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  return sums[0];
}

Tensor squared_norms_cpu(const Tensor& values, const Tensor& offsets) {
  check_squared_norms(values, offsets);
  const auto* begins = offsets.const_data_ptr<int64_t>();
  const int64_t parts = offsets.numel() - 1;
  for (int64_t u = 0; u < parts; ++u)
    TORCH_CHECK(begins[u] >= 0 && begins[u] <= begins[u + 1] && begins[u + 1] <= values.numel(),
                "squared_norms: expected offsets that rise from 0 or more to at most ", values.numel(),
                ", got ", begins[u], " before ", begins[u + 1]);
  Tensor squares = at::empty({parts}, values.options().dtype(at::kDouble));
  const auto* x = values.const_data_ptr<float>();
  auto* square = squares.mutable_data_ptr<double>();
  at::parallel_for(0, parts, kPartsPerThread, [&](int64_t begin, int64_t end) {
    run_widest([&] {
      for (int64_t u = begin; u < end; ++u) square[u] = sum_squares(x + begins[u], begins[u + 1] - begins[u]);
    });
  });
  return squares;
}

}  // namespace

void check_squared_norms(const Tensor& values, const Tensor& offsets) {
  TORCH_CHECK(values.dim() == 1 && values.is_contiguous() && values.scalar_type() == at::kFloat,
              "squared_norms: expected contiguous f32 values [n], got ", values.scalar_type(), " ",
              values.sizes());
  TORCH_CHECK(offsets.dim() == 1 && offsets.numel() >= 1 && offsets.is_contiguous() &&
                  offsets.scalar_type() == at::kLong && offsets.device() == values.device(),
              "squared_norms: expected int64 offsets [U + 1] on ", values.device(), ", got ",
              offsets.scalar_type(), " ", offsets.sizes(), " on ", offsets.device());
}

Tensor squared_norms(const Tensor& values, const Tensor& offsets) {
  return call_op<"dtopp::squared_norms", decltype(squared_norms_cpu)>(values, offsets);
}

TORCH_LIBRARY_FRAGMENT(dtopp, m) { m.def("squared_norms(Tensor values, Tensor offsets) -> Tensor"); }

TORCH_LIBRARY_IMPL(dtopp, CPU, m) { m.impl("squared_norms", squared_norms_cpu); }

}  // namespace dtopp::ops
