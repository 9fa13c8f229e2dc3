#include "dtopp/ops/norm/norm_by_row.h"

#include <vector>

#include "dtopp/ops/gemm/cpu_kernel.h"
#include "dtopp/ops/norm/norm_row_cpu.h"

namespace dtopp::ops {
namespace {

constexpr int64_t kNumbersPerThread = int64_t{1} << 15;

template <typename Scalar>
void norm_rows(const at::Tensor& x_TD, const at::Tensor& gain_D, double eps, bool centred,
               const at::Tensor& y_TD) {
  const int64_t D = x_TD.size(1);
  const auto *x = x_TD.const_data_ptr<Scalar>(), *gain = gain_D.const_data_ptr<Scalar>();
  auto* y = y_TD.mutable_data_ptr<Scalar>();
  const int64_t grain = std::max<int64_t>(kNumbersPerThread / std::max<int64_t>(D, 1), 1);
  at::parallel_for(0, x_TD.size(0), grain, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(D));
    run_widest([&] {
      for (int64_t t = begin; t < end; ++t) {
        const float inverse = centre(x + t * D, D, static_cast<float>(eps), centred, row.data());
#pragma omp simd
        for (int64_t d = 0; d < D; ++d) store(y + t * D + d, row[d] * inverse * load(gain[d]));
      }
    });
  });
}

}  // namespace

at::Tensor norm_by_row(const at::Tensor& x_TD, const at::Tensor& gain_D, double eps, bool centred) {
  const bool has_kernel =
      x_TD.is_cpu() && (x_TD.scalar_type() == at::kFloat || x_TD.scalar_type() == at::kBFloat16);
  TORCH_CHECK(has_kernel && x_TD.dim() == 2 && gain_D.dim() == 1 && gain_D.size(0) == x_TD.size(1) &&
                  gain_D.scalar_type() == x_TD.scalar_type(),
              "norm_by_row: expected x [T, D] and gain [D] on a CPU, both f32 or both bf16, got ",
              x_TD.sizes(), " ", x_TD.scalar_type(), " on ", x_TD.device(), " and ", gain_D.sizes(), " ",
              gain_D.scalar_type());
  at::Tensor y_TD = at::empty(x_TD.sizes(), x_TD.options());
  dispatch_scalar(x_TD, [&](auto scalar) {
    norm_rows<decltype(scalar)>(x_TD.contiguous(), gain_D.contiguous(), eps, centred, y_TD);
  });
  return y_TD;
}

}  // namespace dtopp::ops
