#include "dtopp/ops/optimizer/squared_norms.h"

#include <vector>

#include "dtopp/ops/core/call_op.h"

namespace dtopp::ops {
namespace {

at::Tensor squared_norms_cpu(const at::Tensor& values, const at::Tensor& offsets) {
  check_squared_norms(values, offsets);
  const auto* begins = offsets.const_data_ptr<int64_t>();
  std::vector<at::Tensor> parts;
  for (int64_t u = 0; u + 1 < offsets.numel(); ++u)
    parts.push_back(values.narrow(0, begins[u], begins[u + 1] - begins[u]));
  if (parts.empty()) return at::zeros({0}, values.options().dtype(at::kDouble));
  return at::stack(at::_foreach_norm(parts, 2, at::kDouble)).square_();
}

}  // namespace

void check_squared_norms(const at::Tensor& values, const at::Tensor& offsets) {
  TORCH_CHECK(values.dim() == 1 && values.is_contiguous() && values.scalar_type() == at::kFloat,
              "squared_norms: expected contiguous f32 values [n], got ", values.scalar_type(), " ",
              values.sizes());
  TORCH_CHECK(offsets.dim() == 1 && offsets.numel() >= 1 && offsets.is_contiguous() &&
                  offsets.scalar_type() == at::kLong && offsets.device() == values.device(),
              "squared_norms: expected int64 offsets [U + 1] on ", values.device(), ", got ",
              offsets.scalar_type(), " ", offsets.sizes(), " on ", offsets.device());
}

at::Tensor squared_norms(const at::Tensor& values, const at::Tensor& offsets) {
  return call_op<"dtopp::squared_norms", decltype(squared_norms_cpu)>(values, offsets);
}

TORCH_LIBRARY_FRAGMENT(dtopp, m) { m.def("squared_norms(Tensor values, Tensor offsets) -> Tensor"); }

TORCH_LIBRARY_IMPL(dtopp, CPU, m) { m.impl("squared_norms", squared_norms_cpu); }

}  // namespace dtopp::ops
