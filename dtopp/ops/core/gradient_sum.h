// Sums of a leaf's gradients in fp32, outside of autograd: an op adds a gradient as it forms it, which is
// then neither rounded to the leaf's type nor written down by itself (Megatron: gradient accumulation
// fusion).
#pragma once

#include <torch/csrc/autograd/function_hook.h>

#include "dtopp/ops/core/torch.h"

namespace dtopp {

// Where a gradient goes.
struct SumPlace {
  at::Tensor sum{};  // f32 (f64 for f64), contiguous, of the leaf's shape; undefined: nowhere, it is returned
  bool add = false;  // to what is there, else that is overwritten

  // For an op whose kernel cannot: the gradient joins the sum, or is returned where there is none.
  at::Tensor take(at::Tensor gradient) const {
    if (!sum.defined()) return gradient;
    if (add) {
      sum.add_(gradient);
    } else {
      sum.copy_(gradient);
    }
    return {};
  }
};

// A leaf's hook (torch::autograd::impl::set_post_acc_grad_hooks). In the backward pass of an op that is the
// only one to read the leaf it is asked where the gradient goes; autograd then calls it with a leaf that has
// none.
class GradientSum : public torch::autograd::PostAccumulateGradHook {
 public:
  // Changes nothing.
  virtual SumPlace place() = 0;
  // The gradient of this backward pass is in the sum that place() named.
  virtual void complete(const SumPlace& place) = 0;

  // Null where the tensor has none.
  static GradientSum* of(const at::Tensor& leaf) {
    return dynamic_cast<GradientSum*>(torch::autograd::impl::post_acc_grad_hooks(leaf).get());
  }
};

}  // namespace dtopp
