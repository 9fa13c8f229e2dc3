#include "dtopp/ops/optimizer/orthogonalize.h"

#include "dtopp/ops/core/call_op.h"
#include "dtopp/ops/gemm/linear.h"

namespace dtopp::ops {
namespace {

constexpr int kSteps = 5;
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;  // X becomes kA X + kB (X X^T) X + kC (X X^T)^2 X
constexpr double kSmallestNorm = 1e-7;
constexpr int64_t kCudaBatch = 16;  // always as many: a product's bits may depend on it
// A symmetric product is computed in parts. Smaller parts cost more time than their half saves (measured).
constexpr int64_t kSymmetricParts = 4, kLeastRows = 128, kLeastRowsOfLibrary = 256;

// Matrices are [M, N] on a CPU and [B, M, N] on a device.

Tensor multiply_transposed(const Tensor& left, const Tensor& right) {
  return multiplies_on_tiles(left) ? multiply_transposed_cpu(left, right, left.scalar_type())
                                   : at::matmul(left, right.mT());
}

// X X^T. Only blocks on and below the diagonal are computed.
Tensor symmetric_square(const Tensor& X) {
  const int64_t M = X.size(-2), least = multiplies_on_tiles(X) ? kLeastRows : kLeastRowsOfLibrary;
  const int64_t step = std::max((M + kSymmetricParts - 1) / kSymmetricParts, least);
  if (step >= M) return multiply_transposed(X, X);
  std::vector<int64_t> shape = X.sizes().vec();
  shape.back() = M;
  Tensor square = at::empty(shape, X.options());
  for (int64_t first = 0; first < M; first += step) {
    const int64_t rows = std::min(step, M - first);
    const Tensor part = multiply_transposed(X.narrow(-2, first, rows), X.narrow(-2, 0, first + rows));
    square.narrow(-2, first, rows).narrow(-1, 0, first + rows).copy_(part);
    square.narrow(-2, 0, first).narrow(-1, first, rows).copy_(part.narrow(-1, 0, first).mT());
  }
  return square;
}

// kA X + P X
Tensor next(const Tensor& X, const Tensor& P) {
  if (multiplies_on_tiles(X)) return multiply_cpu(P, X).add_(X, kA);
  return X.dim() == 2 ? at::addmm(X, P, X, kA) : at::baddbmm(X, P, X, kA);
}

// The norm is summed in double, so that no gradient is too large.
Tensor newton_schulz(const Tensor& matrices, bool bf16) {
  const bool tall = matrices.size(-2) > matrices.size(-1);
  const Tensor norm =
      at::linalg_vector_norm(matrices, 2, at::IntArrayRef{-2, -1}, /*keepdim=*/true, at::kDouble)
          .clamp_min(kSmallestNorm);
  Tensor X = (matrices / norm).to(bf16 ? at::kBFloat16 : at::kFloat);
  if (tall) X = X.mT().contiguous();
  for (int step = 0; step < kSteps; ++step) {
    const Tensor square = symmetric_square(X);
    X = next(X, symmetric_square(square).mul_(kC).add_(square, kB));
  }
  return (tall ? X.mT() : X).to(at::kFloat);
}

void check_orthogonalize(const Tensor& matrices) {
  TORCH_CHECK(matrices.dim() == 3 && matrices.scalar_type() == at::kFloat,
              "orthogonalize: expected f32 matrices [B, M, N], got ", matrices.scalar_type(), " ",
              matrices.sizes());
}

// One thread computes a matrix, because a product's bits may depend on the number of threads.
Tensor orthogonalize_cpu(const Tensor& matrices_BMN, bool bf16) {
  check_orthogonalize(matrices_BMN);
  Tensor result_BMN = at::empty_like(matrices_BMN, at::MemoryFormat::Contiguous);
  at::parallel_for(0, matrices_BMN.numel() == 0 ? 0 : matrices_BMN.size(0), 1,
                   [&](int64_t begin, int64_t end) {
                     const at::AutoDispatchBelowADInplaceOrView guard;
                     for (int64_t b = begin; b < end; ++b)
                       result_BMN.select(0, b).copy_(newton_schulz(matrices_BMN.select(0, b), bf16));
                   });
  return result_BMN;
}

Tensor orthogonalize_cuda(const Tensor& matrices_BMN, bool bf16) {
  check_orthogonalize(matrices_BMN);
  const int64_t B = matrices_BMN.size(0), M = matrices_BMN.size(1), N = matrices_BMN.size(2);
  Tensor result_BMN = at::empty_like(matrices_BMN, at::MemoryFormat::Contiguous);
  for (int64_t b = 0; matrices_BMN.numel() > 0 && b < B; b += kCudaBatch) {
    const int64_t count = std::min(kCudaBatch, B - b);
    Tensor batch_BMN = matrices_BMN.narrow(0, b, count);
    if (count < kCudaBatch)
      batch_BMN = at::cat({batch_BMN, at::zeros({kCudaBatch - count, M, N}, matrices_BMN.options())});
    result_BMN.narrow(0, b, count).copy_(newton_schulz(batch_BMN, bf16).narrow(0, 0, count));
  }
  return result_BMN;
}

}  // namespace

Tensor orthogonalize(const Tensor& matrices_BMN, bool bf16) {
  return call_op<"dtopp::orthogonalize", decltype(orthogonalize_cpu)>(matrices_BMN, bf16);
}

double orthogonalize_flops(double M, double N) {
  const double rows = std::min(M, N), columns = std::max(M, N);
  return kSteps * (3 * rows * rows * columns + rows * rows * rows);
}

TORCH_LIBRARY_FRAGMENT(dtopp, m) { m.def("orthogonalize(Tensor matrices, bool bf16) -> Tensor"); }

TORCH_LIBRARY_IMPL(dtopp, CPU, m) { m.impl("orthogonalize", orthogonalize_cpu); }
TORCH_LIBRARY_IMPL(dtopp, CUDA, m) { m.impl("orthogonalize", orthogonalize_cuda); }

}  // namespace dtopp::ops
