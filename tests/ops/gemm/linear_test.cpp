#include "dtopp/ops/gemm/linear.h"

#include <gtest/gtest.h>

#include "tests/ops/reference.h"

namespace dtopp::ops::linear_test {
namespace {

struct Bound {
  at::ScalarType dtype;
  double value;
};

// bf16 inputs are exact; the result is rounded once (2^-8 relative).
constexpr Bound kBounds[] = {{at::kFloat, 1e-5}, {at::kBFloat16, 1.0 / 256}};

// Few rows (as in generation), no rows, and weights that span several cache blocks.
struct LinearShape {
  std::vector<int64_t> rows;
  int64_t width, outputs;
};
const std::vector<LinearShape> kLinearShapes = {{{3, 7}, 20, 11},  {{0}, 8, 5},       {{1}, 300, 7},
                                                {{2, 50}, 33, 64}, {{700}, 600, 900}, {{33}, 1, 1}};

void expect_linear(const LinearShape& shape, at::ScalarType dtype, double bound) {
  SCOPED_TRACE(testing::Message() << at::IntArrayRef(shape.rows) << " of " << shape.width << " to "
                                  << shape.outputs);
  std::vector<int64_t> sizes = shape.rows;
  sizes.push_back(shape.width);
  const at::Tensor x = at::randn(sizes).to(dtype).requires_grad_();
  const at::Tensor weight = at::randn({shape.outputs, shape.width}).to(dtype).requires_grad_();
  const at::Tensor exact_x = x.detach().to(at::kDouble).requires_grad_();
  const at::Tensor exact_weight = weight.detach().to(at::kDouble).requires_grad_();
  const at::Tensor y = dtopp::ops::linear(x, weight), expected = at::matmul(exact_x, exact_weight.t());
  EXPECT_EQ(y.scalar_type(), dtype);
  EXPECT_LT(reference::error(y, expected), bound);
  EXPECT_EQ(y.sizes(), expected.sizes());
  const at::Tensor grad = at::randn(y.sizes()).to(dtype);
  y.backward(grad);
  expected.backward(grad.to(at::kDouble));
  EXPECT_LT(reference::error(x.grad(), exact_x.grad()), bound);
  EXPECT_LT(reference::error(weight.grad(), exact_weight.grad()), bound);
}

TEST(Linear, and_its_gradients_match_double_precision) {
  for (const auto& [dtype, bound] : kBounds) {
    for (const LinearShape& shape : kLinearShapes) expect_linear(shape, dtype, bound);
  }
}

TEST(Linear, takes_rows_and_weights_that_are_not_contiguous) {
  const at::Tensor x = at::randn({40, 100}).t().requires_grad_();
  const at::Tensor weight = at::randn({40, 9}).t();
  const at::Tensor y = dtopp::ops::linear(x, weight);
  EXPECT_TRUE(at::allclose(y, at::matmul(x, weight.t()), 1e-5, 1e-5));
  y.sum().backward();
  EXPECT_TRUE(at::allclose(x.grad(), weight.sum(0).expand({100, 40}), 1e-5, 1e-5));
}

TEST(Linear, a_row_does_not_depend_on_the_other_rows) {
  for (const auto& [width, outputs] :
       std::vector<std::pair<int64_t, int64_t>>{{300, 70}, {16, 16}, {513, 33}}) {
    const at::Tensor x = at::randn({200, width}), weight = at::randn({outputs, width});
    const at::Tensor all = dtopp::ops::linear(x, weight);
    for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 31, 65, 127, 128})
      EXPECT_TRUE(at::equal(dtopp::ops::linear(x.narrow(0, 9, rows), weight), all.narrow(0, 9, rows)))
          << rows;
  }
}

// An fp32 result of bf16 inputs has the error of its sums alone.
TEST(LinearByRow, matches_double_precision) {
  for (const LinearShape& shape : kLinearShapes) {
    const int64_t rows = c10::multiply_integers(shape.rows);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor x = at::randn({rows, shape.width}).to(dtype);
      const at::Tensor weight = at::randn({shape.outputs, shape.width}).to(dtype);
      const at::Tensor expected = at::matmul(x.to(at::kDouble), weight.to(at::kDouble).t());
      for (const auto& [type, bound] : kBounds) {
        if (dtype == at::kFloat && type == at::kBFloat16) continue;
        const at::Tensor y = linear_by_row(x, at::TensorList(weight), type)[0];
        EXPECT_EQ(y.scalar_type(), type);
        EXPECT_LT(reference::error(y, expected), bound) << rows << " of " << shape.width << ' ' << dtype;
      }
    }
  }
}

TEST(LinearByRow, multiplies_with_several_weights) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::randn({5, 70}).to(dtype);
    const std::vector<at::Tensor> weights = {at::randn({130, 70}).to(dtype), at::randn({3, 70}).to(dtype),
                                             at::randn({64, 70}).to(dtype)};
    const std::vector<at::Tensor> together = linear_by_row(x, weights, dtype);
    for (size_t i = 0; i < weights.size(); ++i)
      EXPECT_TRUE(at::equal(together[i], linear_by_row(x, weights[i])));
  }
}

TEST(LinearByRow, a_row_of_bf16_does_not_depend_on_the_other_rows) {
  if (has_amx()) GTEST_SKIP() << "with AMX the last bits depend on the number of rows";
  for (const auto& [width, outputs] :
       std::vector<std::pair<int64_t, int64_t>>{{300, 70}, {16, 16}, {513, 33}}) {
    const at::Tensor x = at::randn({300, width}).to(at::kBFloat16);
    const at::Tensor weight = at::randn({outputs, width}).to(at::kBFloat16);
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
      const at::Tensor all = linear_by_row(x, at::TensorList(weight), type)[0];
      for (const int64_t rows : {1, 2, 7, 31, 32, 65, 140})
        EXPECT_TRUE(at::equal(linear_by_row(x.narrow(0, 9, rows), at::TensorList(weight), type)[0],
                              all.narrow(0, 9, rows)))
            << rows;
    }
  }
}

TEST(Linear, gives_no_gradient_nobody_asked_for) {
  const at::Tensor x = at::randn({4, 6}).to(at::kBFloat16);
  const at::Tensor weight = at::randn({5, 6}).to(at::kBFloat16).requires_grad_();
  dtopp::ops::linear(x, weight).sum().backward();
  EXPECT_FALSE(x.grad().defined());
  EXPECT_TRUE(weight.grad().defined());
}

}  // namespace
}  // namespace dtopp::ops::linear_test
