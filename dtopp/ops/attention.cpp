#include "dtopp/ops/attention.h"

#include "dtopp/ops/attention_cpu.h"
#include "dtopp/ops/linear_cpu.h"

namespace dtopp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Saves q, k, v, the result and the log-sum-exp of each query's scores.
struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const AttentionOutput out = causal_attention_cpu(q, k, v);
    context->save_for_backward({q, k, v, out.y_BHLK, out.lse_BHL});
    return out.y_BHLK;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const AttentionGradients grad =
        causal_attention_backward_cpu(grads[0], saved[0], saved[1], saved[2], {saved[3], saved[4]});
    return {grad.q, grad.k, grad.v};
  }
};

}  // namespace

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  TORCH_CHECK(q.dim() == 4 && k.sizes() == q.sizes() && v.sizes() == q.sizes(),
              "causal_attention: expected q, k and v of one shape [B, H, L, K], got ", q.sizes(), ", ",
              k.sizes(), " and ", v.sizes());
  if (multiplies_on_tiles(q) && q.size(3) <= kWidestHead) return AttentionFunction::apply(q, k, v);
  return at::scaled_dot_product_attention(q, k, v, std::nullopt, 0.0, /*is_causal=*/true);
}

}  // namespace dtopp
