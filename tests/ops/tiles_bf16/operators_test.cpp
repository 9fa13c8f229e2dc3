// Tests that the operators use the bfloat16 tiles in this program, which also contains the operators' own
// tests, and tests the behavior specific to these tiles.
#include <gtest/gtest.h>

#include "dtopp/ops/attention/attention.h"
#include "dtopp/ops/cross_entropy/linear_cross_entropy.h"
#include "dtopp/ops/gemm/linear.h"
#include "dtopp/ops/moe_ffn/moe_ffn.h"
#include "tests/ops/reference.h"
#include "tests/ops/tiles_bf16/matrix_unit_on_host.h"

namespace dtopp::ops::tiles_bf16_test {
namespace {

at::Tensor leaf(at::IntArrayRef sizes, double scale) {
  return at::randn(sizes).mul(scale).to(at::kBFloat16).requires_grad_();
}

// Calls body, which must use the matrix unit and release the tiles of every thread at the end.
template <typename Body>
void expect_products(const Body& body) {
  const int64_t before = matrix_unit_on_host::products();
  body();
  EXPECT_GT(matrix_unit_on_host::products(), before);
  EXPECT_EQ(matrix_unit_on_host::threads_holding_tiles(), 0);
}

// Few rows per expert (threads share columns) and many (threads share tokens), on one thread and on several.
TEST(TilesBf16, moe_ffn_multiplies_on_the_matrix_unit_and_leaves_it) {
  const int before = at::get_num_threads();
  for (const int threads : {1, 3}) {
    at::set_num_threads(threads);
    for (const int64_t tokens : {40, 600}) {
      const at::Tensor x = leaf({tokens, 96}, 1), gates = at::rand({tokens, 2}).requires_grad_();
      const at::Tensor gate_up = leaf({2, 2 * 48, 96}, 0.1), down = leaf({2, 96, 48}, 0.1);
      at::Tensor y;
      expect_products([&] { y = moe_ffn(x, gates, gate_up, down); });
      expect_products([&] { y.sum().backward(); });
    }
  }
  at::set_num_threads(before);
}

TEST(TilesBf16, linear_cross_entropy_multiplies_on_the_matrix_unit_and_leaves_it) {
  const at::Tensor x = leaf({70, 33}, 1), weight = leaf({600, 33}, 1);
  const at::Tensor targets = at::randint(600, {70}, at::kLong);
  expect_products([&] { linear_cross_entropy(x, weight, targets).loss.backward(); });
  expect_products([&] { token_log_probs(x, weight, targets); });
}

TEST(TilesBf16, attention_multiplies_on_the_matrix_unit_and_leaves_it) {
  const at::Tensor q = leaf({1, 2, 150, 24}, 1), k = leaf({1, 2, 150, 24}, 1), v = leaf({1, 2, 150, 24}, 1);
  at::Tensor y;
  expect_products([&] { y = self_attention(q, k, v, /*causal=*/true); });
  expect_products([&] { y.sum().backward(); });
}

TEST(TilesBf16, dense_products_match_double_precision) {
  for (const auto& [T, D, N] :
       std::vector<std::array<int64_t, 3>>{{33, 31, 65}, {64, 64, 128}, {700, 600, 900}}) {
    const at::Tensor x = at::randn({T, D}).to(at::kBFloat16), weight = at::randn({N, D}).to(at::kBFloat16);
    const at::Tensor grad = at::randn({T, N}).to(at::kBFloat16);
    const auto exact = [](const at::Tensor& tensor) { return tensor.to(at::kDouble); };
    constexpr double kBound = 1.0 / 256;  // rounded once
    expect_products([&, &T = T, &D = D, &N = N] {
      SCOPED_TRACE(testing::Message() << T << " x " << D << " x " << N);
      EXPECT_LT(reference::error(multiply_transposed_cpu(x, weight, x.scalar_type()),
                                 at::mm(exact(x), exact(weight).t())),
                kBound);
      EXPECT_LT(reference::error(multiply_cpu(grad, weight), at::mm(exact(grad), exact(weight))), kBound);
      EXPECT_LT(reference::error(multiply_left_transposed_cpu(grad, x), at::mm(exact(grad).t(), exact(x))),
                kBound);
    });
  }
}

// A sum over more rows than are packed at once continues from the previous part's result.
TEST(TilesBf16, weight_gradients_of_many_rows_match_double_precision) {
  for (const int64_t K : {0, 2047, 2048, 2049, 5000}) {
    const at::Tensor left = at::randn({K, 150}).to(at::kBFloat16),
                     right = at::randn({K, 70}).to(at::kBFloat16);
    const at::Tensor expected = at::mm(left.to(at::kDouble).t(), right.to(at::kDouble));
    const at::Tensor sum = multiply_left_transposed_cpu(left, right);
    EXPECT_LT(reference::error(sum, expected), 1.0 / 256) << K;
    EXPECT_EQ(sum.any().item<bool>(), K > 0);
  }
}

// If the target's probability is near 1, its gradient is a small difference, here 3 e^-12 of a token's share.
// Computed from rounded numbers, it would be off by 2^-8 of that share.
TEST(TilesBf16, gradients_of_sure_predictions_keep_their_size) {
  const at::Tensor x = at::eye(4).mul(12).to(at::kBFloat16).requires_grad_();
  const at::Tensor weight = at::eye(4).to(at::kBFloat16).requires_grad_();
  const at::Tensor exact_x = x.detach().to(at::kDouble).requires_grad_();
  const at::Tensor exact_weight = weight.detach().to(at::kDouble).requires_grad_();
  const at::Tensor targets = at::arange(4);
  linear_cross_entropy(x, weight, targets).loss.backward();
  reference::cross_entropy(exact_x, exact_weight, targets).first.backward();
  EXPECT_LT(reference::error(x.grad(), exact_x.grad()), 1.0 / 64);
  EXPECT_LT(reference::error(weight.grad(), exact_weight.grad()), 1.0 / 64);
}

TEST(TilesBf16, results_do_not_change_from_run_to_run) {
  const auto run = [] {
    at::manual_seed(5);
    const at::Tensor x = leaf({500, 70}, 1), gates = at::rand({500, 3}).requires_grad_();
    const at::Tensor gate_up = leaf({3, 2 * 40, 70}, 0.1), down = leaf({3, 70, 40}, 0.1);
    const at::Tensor y = moe_ffn(x, gates, gate_up, down);
    y.square().sum().backward();
    return std::vector<at::Tensor>{y, x.grad(), gates.grad(), gate_up.grad(), down.grad()};
  };
  const auto first = run(), second = run();
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::equal(first[i], second[i])) << i;
}

}  // namespace
}  // namespace dtopp::ops::tiles_bf16_test
