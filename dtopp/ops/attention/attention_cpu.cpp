#include "dtopp/ops/attention/attention_cpu.h"

#include "dtopp/ops/attention/attention_tiles_cpu.h"
#include "dtopp/ops/gemm/linear.h"

namespace dtopp::ops {
namespace {

// Tiles hold heads of kLargestHead numbers at most.
bool multiplies_in_tiles(const at::Tensor& q) {
  const bool fits = q.size(3) <= attention_tiles::kLargestHead;
  return fits && (q.scalar_type() == at::kFloat || q.scalar_type() == at::kBFloat16);
}

bool widens(const at::Tensor& q) { return q.scalar_type() == at::kBFloat16 && !has_bf16_matmul(q.device()); }

}  // namespace

AttentionResult attention_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal) {
  if (multiplies_in_tiles(q)) return attention_in_tiles(q, k, v, causal);
  const at::ScalarType type = widens(q) ? at::kFloat : q.scalar_type();
  const auto [y, lse] =
      at::_scaled_dot_product_flash_attention_for_cpu(q.to(type), k.to(type), v.to(type), 0.0, causal);
  return {y.to(q.scalar_type()), lse};
}

std::array<at::Tensor, 3> attention_backward_cpu(const at::Tensor& grad_y, const at::Tensor& q,
                                                 const at::Tensor& k, const at::Tensor& v,
                                                 const AttentionResult& result, bool causal) {
  if (multiplies_in_tiles(q)) return attention_backward_in_tiles(grad_y, q, k, v, result, causal);
  const at::ScalarType type = widens(q) ? at::kFloat : q.scalar_type();
  const auto [grad_q, grad_k, grad_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad_y.to(type), q.to(type), k.to(type), v.to(type), result.y_BHLK.to(type), result.logsumexp_BHL, 0.0,
      causal);
  return {grad_q.to(q.scalar_type()), grad_k.to(q.scalar_type()), grad_v.to(q.scalar_type())};
}

}  // namespace dtopp::ops
