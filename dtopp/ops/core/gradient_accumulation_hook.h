// Accumulates a parameter's gradients over micro-batches in fp32, without autograd in between (Megatron:
// gradient accumulation fusion).
//
// Autograd rounds a gradient to the parameter's dtype before a hook can add it to an fp32 sum. An op that
// supports fusion adds to the sum inside its kernel instead. Example: a bf16 parameter with the gradients
// 1.001 and 1.002 in two micro-batches:
//
//   unfused   kernel -> bf16 1.0, 1.0 -> autograd -> hook: sum = 1.0 + 1.0       = 2.0
//   fused     kernel ------------------------------------> sum = 1.001 + 1.002   = 2.003
//
// The fused path also saves writing and reading the bf16 gradient. The backward pass of an op, such as
// moe_ffn, does:
//
//   GradientAccumulationHook* hook = GradientAccumulationHook::of(parameter);
//   AccumulationTarget target = hook->target();
//   ... the kernel writes to or adds to target.sum ...
//   hook->complete(target);
//
// The op then returns an undefined gradient to autograd, which calls the hook as usual. The parameter's .grad
// is undefined in that call. If `hook` is null or target.sum is undefined, the op returns the gradient.
#pragma once

#include <torch/csrc/autograd/function_hook.h>

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

// The destination of one gradient: the sum, and whether to add to it.
struct AccumulationTarget {
  Tensor sum{};      // f32 (f64 for f64), contiguous, the parameter's shape; undefined: none
  bool add = false;  // true: add to the sum; false: overwrite it

  // For an op whose kernel cannot write to the sum. Moves the gradient into the sum and returns an undefined
  // tensor. Without a sum, returns the gradient.
  Tensor take(Tensor gradient) const {
    if (!sum.defined()) return gradient;
    add ? sum.add_(gradient) : sum.copy_(gradient);
    return {};
  }
};

// A parameter's hook (torch::autograd::impl::set_post_acc_grad_hooks) that provides the destination of its
// gradients.
//
// Only an op that alone reads the parameter may use target() and complete(). Otherwise the hook would receive
// a second gradient in the same backward pass.
class GradientAccumulationHook : public torch::autograd::PostAccumulateGradHook {
 public:
  // Returns where the gradient of this backward pass goes. Has no side effects.
  virtual AccumulationTarget target() = 0;
  // Reports that the sum which target() returned contains the gradient of this backward pass.
  virtual void complete(const AccumulationTarget& target) = 0;

  // Returns the tensor's hook, or null if it has no GradientAccumulationHook.
  static GradientAccumulationHook* of(const Tensor& parameter) {
    return dynamic_cast<GradientAccumulationHook*>(
        torch::autograd::impl::post_acc_grad_hooks(parameter).get());
  }
};

}  // namespace dtopp::ops
