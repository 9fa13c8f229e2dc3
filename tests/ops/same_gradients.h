// Compares a result and its gradients with a reference.
#pragma once

#include <vector>

#include <gtest/gtest.h>

#include "tests/ops/reference.h"

namespace dtopp::ops {

// Expects that y, computed from `in`, is within the bound of `expected`, computed from `exact` in double. The
// gradients for a random gradient of y must agree too.
inline void expect_same_gradients(const at::Tensor& y, const at::Tensor& expected,
                                  const std::vector<at::Tensor>& in, const std::vector<at::Tensor>& exact,
                                  double bound) {
  EXPECT_EQ(y.scalar_type(), in[0].scalar_type());
  ASSERT_EQ(y.sizes(), expected.sizes());
  EXPECT_LT(reference::error(y, expected), bound);
  const at::Tensor grad = at::randn(y.sizes()).to(y.scalar_type());
  y.backward(grad);
  expected.backward(grad.to(at::kDouble));
  for (size_t i = 0; i < in.size(); ++i) {
    const at::Tensor actual = in[i].grad(), want = exact[i].grad();
    if (want.numel() > 0 && !want.any().item<bool>()) {
      // The terms of this gradient cancel, as for attention with one token. Their rounding errors remain.
      EXPECT_LE(actual.abs().max().item<double>(),
                grad.numel() > 0 ? bound * grad.abs().max().item<double>() : 0.0);
    } else {
      EXPECT_LT(reference::error(actual, want), bound);
    }
  }
}

}  // namespace dtopp::ops
