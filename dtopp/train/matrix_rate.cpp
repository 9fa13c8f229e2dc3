#include "dtopp/train/matrix_rate.h"

#include <algorithm>
#include <chrono>

#include "dtopp/ops/linear.h"

namespace dtopp {

double measure_matrix_rate(at::ScalarType type) {
  constexpr int64_t kRows = 4096;
  constexpr int64_t kWidth = 768;
  constexpr int kCalls = 8;
  const at::NoGradGuard no_grad;
  if (type == at::kBFloat16 && !has_bf16_matmul(at::kCPU)) type = at::kFloat;
  const at::Tensor a = at::ones({kRows, kWidth}, type);
  const at::Tensor b = at::ones({kWidth, kWidth}, type);
  at::Tensor product = at::mm(a, b);  // warms caches and thread pool
  double best = 0;
  for (int call = 0; call < kCalls; ++call) {
    const auto begin = std::chrono::steady_clock::now();
    at::mm_out(product, a, b);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    best = std::max(best, 2.0 * kRows * kWidth * kWidth / elapsed.count());
  }
  return best;
}

}  // namespace dtopp
