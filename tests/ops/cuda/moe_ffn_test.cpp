// Tests moe_ffn's CUDA side, with kernels run on a CPU and products in torch, against double precision and
// the CPU kernels.
#include "dtopp/ops/moe_ffn/moe_ffn.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/ops/moe_ffn/moe_ffn_pairs_cuda.h"
#include "tests/ops/cuda/moe_ffn_case.h"

namespace dtopp::ops::moe_ffn_test {
namespace {

// Uses torch's products or the fused kernels, which exist for bf16 only.
class MoeFfnOnHost : public testing::TestWithParam<const char*> {
 protected:
  MoeFfnOnHost() { setenv("DTOPP_MOE_KERNELS", GetParam(), 1); }
  ~MoeFfnOnHost() override { unsetenv("DTOPP_MOE_KERNELS"); }

  static std::vector<at::ScalarType> types() {
    if (std::string_view(GetParam()) == "fused") return {at::kBFloat16};
    return {at::kFloat, at::kBFloat16, at::kDouble};
  }
};
INSTANTIATE_TEST_SUITE_P(Products, MoeFfnOnHost, testing::Values("grouped_mm", "fused"));

void expect_matches_double_precision(const Shape& shape, at::ScalarType dtype, int64_t spare_room) {
  SCOPED_TRACE(testing::Message() << shape.tokens << " " << shape.hidden << " " << shape.ffn << " "
                                  << shape.experts << " " << dtype << " spare " << spare_room);
  expect_near_double_precision(make_case(shape, dtype), spare_room);
}

TEST_P(MoeFfnOnHost, matches_double_precision_for_any_shape) {
  for (const at::ScalarType dtype : types()) {
    for (const Shape& shape : std::vector<Shape>{{0, 8, 8, 3, 0.5},
                                                 {1, 8, 4, 1, 1.0},
                                                 {40, 16, 8, 1, 1.0},
                                                 {65, 24, 12, 6, 0.4},
                                                 {50, 16, 8, 4, 1.0},
                                                 {300, 32, 24, 16, 0.04},
                                                 {31, 13, 7, 3, 0.6},
                                                 {140, 8, 8, 64, 0.1},
                                                 {20, 264, 72, 24, 0.2}}) {
      expect_matches_double_precision(shape, dtype, 0);
      if (shape.tokens == 65) expect_matches_double_precision(shape, dtype, 37);
    }
  }
}

TEST(PairsOnHost, are_those_of_nonzero) {
  for (const auto& [tokens, experts] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {129, 33}, {300, 60}, {257, 64}, {5, 300}, {7, 900}, {7, 901}}) {
    const Case c = make_case({tokens, 1, 1, experts, 0.3}, at::kFloat);
    const cuda::Pairs pairs = cuda::make_pairs(c.gates_TE, 0, {});
    const at::Tensor expected = at::nonzero(c.gates_TE.t());
    ASSERT_EQ(pairs.capacity(), expected.size(0));
    EXPECT_TRUE(at::equal(pairs.token_A, expected.select(1, 1).to(at::kInt)));
    EXPECT_TRUE(at::equal(pairs.gate_A, c.gates_TE.t().masked_select(c.gates_TE.t() != 0)));
    EXPECT_TRUE(at::equal(pairs.offsets_E1.diff(), c.gates_TE.ne(0).sum(0).to(at::kInt)));
    const at::Tensor positions =
        at::full({experts, tokens}, -1, at::kInt)
            .masked_scatter(c.gates_TE.t() != 0, at::arange(pairs.capacity(), at::kInt));
    EXPECT_TRUE(at::equal(pairs.position_TE, positions.t()));
  }
}

// Adds the rows of T tokens of each of E experts along an aligned tree. Its blocks have E's odd divisor times
// a power of two.
at::Tensor sum_along_tree(std::vector<at::Tensor> rows_E) {
  size_t odd = rows_E.size();
  while (odd % 2 == 0) odd /= 2;
  for (size_t block = 0; block < rows_E.size(); block += odd) {
    for (size_t stride = 1; stride < odd; stride *= 2)
      for (size_t e = 0; e + stride < odd; e += 2 * stride)
        rows_E[block + e] = rows_E[block + e] + rows_E[block + e + stride];
  }
  for (size_t stride = odd; stride < rows_E.size(); stride *= 2)
    for (size_t e = 0; e < rows_E.size(); e += 2 * stride) rows_E[e] = rows_E[e] + rows_E[e + stride];
  return rows_E[0];
}

// Ranks that share the experts then get the bits of a rank with all experts (moe_ffn_slices_test.cpp).
TEST(PairsOnHost, are_added_along_the_tree_over_experts) {
  constexpr int64_t kTokens = 12, kHidden = 12;
  for (const int64_t experts : {1, 2, 3, 6, 8, 12, 33, 64, 2048}) {
    for (const double chance : {0.1, 0.7}) {
      SCOPED_TRACE(testing::Message() << experts << " experts, chance " << chance);
      const at::Tensor gates_TE =
          at::rand({kTokens, experts}).lt(chance).mul(at::rand({kTokens, experts}).add(0.1));
      const cuda::Pairs pairs = cuda::make_pairs(gates_TE, 0, {});
      const at::Tensor rows_AD = at::randn({pairs.capacity(), kHidden});
      std::vector<at::Tensor> weighted_E, plain_E;
      for (int64_t e = 0; e < experts; ++e) {
        const at::Tensor position_T = pairs.position_TE.select(1, e).to(at::kLong);
        const at::Tensor tokens = position_T.ge(0).nonzero().view(-1);
        const at::Tensor rows = rows_AD.index_select(0, position_T.index_select(0, tokens));
        const at::Tensor gates = gates_TE.select(1, e).index_select(0, tokens).unsqueeze(1);
        const at::Tensor absent = at::full({kTokens, kHidden}, -0.0F);
        weighted_E.push_back(absent.index_copy(0, tokens, rows * gates));
        plain_E.push_back(absent.index_copy(0, tokens, rows));
      }
      EXPECT_TRUE(cuda::sum_pairs(pairs, rows_AD, gates_TE).equal(sum_along_tree(weighted_E)));
      EXPECT_TRUE(cuda::sum_pairs(pairs, rows_AD, at::Tensor()).equal(sum_along_tree(plain_E)));
    }
  }
}

TEST_P(MoeFfnOnHost, spare_room_changes_no_bit) {
  for (const at::ScalarType dtype : types()) {
    const Case c = make_case({70, 16, 8, 6, 0.4}, dtype);
    const at::Tensor grad_y = at::randn(c.x_TD.sizes()).to(dtype);
    const auto exact = run_cuda(c, grad_y, count_pairs(c)).all();
    const auto spare = run_cuda(c, grad_y, count_pairs(c) + 91).all();
    for (size_t i = 0; i < exact.size(); ++i) EXPECT_TRUE(at::equal(exact[i], spare[i])) << i;
    EXPECT_TRUE(at::equal(exact[0], run_inference(c, count_pairs(c) + 5)));
  }
}

TEST_P(MoeFfnOnHost, any_order_of_threads_and_blocks_gives_the_same_bits) {
  const Case c = make_case({150, 24, 16, 12, 0.3}, at::kBFloat16);
  const at::Tensor grad_y = at::randn(c.x_TD.sizes()).to(at::kBFloat16);
  std::vector<at::Tensor> first;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    cuda_on_host::set_seed(seed);
    const auto all = run_cuda(c, grad_y, count_pairs(c)).all();
    if (seed == 0) first = all;
    for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(at::equal(all[i], first[i])) << i;
  }
}

// The omitted results are undefined. Sanitizers check that all memory accesses are valid.
TEST_P(MoeFfnOnHost, too_little_room_leaves_pairs_out) {
  const Case c = make_case({70, 16, 8, 6, 0.6}, at::kBFloat16);
  const at::Tensor grad_y = at::randn(c.x_TD.sizes()).to(at::kBFloat16);
  const Outputs out = run_cuda(c, grad_y, count_pairs(c) / 2);
  EXPECT_EQ(out.pre_AG.size(0), count_pairs(c) / 2);
  for (const at::Tensor& tensor : out.all()) EXPECT_TRUE(at::isfinite(tensor).all().item<bool>());
}

TEST_P(MoeFfnOnHost, experts_without_tokens_have_zero_gradients) {
  for (const at::ScalarType dtype : types()) {
    Case c = make_case({20, 8, 8, 4, 1.0}, dtype);
    c.gates_TE.select(1, 2).zero_();
    const Gradients grad = run_cuda(c, at::ones_like(c.x_TD), count_pairs(c) + 3).grad;
    for (const at::Tensor& weight : {std::get<2>(grad), std::get<3>(grad)}) {
      EXPECT_FALSE(weight[2].any().item<bool>());
      EXPECT_TRUE(weight[1].any().item<bool>());
    }
    EXPECT_FALSE(std::get<1>(grad).select(1, 2).any().item<bool>());
  }
}

TEST_P(MoeFfnOnHost, no_pairs_give_zeros) {
  Case c = make_case({20, 8, 8, 4, 1.0}, at::kBFloat16);
  c.gates_TE.zero_();
  for (const int64_t room : {0, 9}) {
    for (const at::Tensor& tensor : run_cuda(c, at::ones_like(c.x_TD), room).all())
      EXPECT_FALSE(tensor.any().item<bool>()) << room;
  }
}

TEST_P(MoeFfnOnHost, a_gate_that_is_not_finite_does_not_touch_other_tokens) {
  Case c = make_case({20, 8, 8, 4, 0.5}, at::kBFloat16);
  c.gates_TE[3].fill_(std::numeric_limits<float>::quiet_NaN());
  const at::Tensor y = run_cuda(c, at::ones_like(c.x_TD), count_pairs(c)).y;
  EXPECT_TRUE(y[3].isnan().all().item<bool>());
  EXPECT_TRUE(at::isfinite(y.slice(0, 4)).all().item<bool>());
}

// A slice of a larger tensor may begin at any address.
TEST_P(MoeFfnOnHost, takes_tensors_at_any_address) {
  const Case c = make_case({20, 8, 8, 4, 0.5}, at::kBFloat16);
  const auto moved = [](const at::Tensor& tensor) {
    return at::empty({tensor.numel() + 1}, tensor.options())
        .slice(0, 1)
        .copy_(tensor.flatten())
        .view_as(tensor);
  };
  const at::Tensor grad_y = at::randn(c.x_TD.sizes()).to(at::kBFloat16);
  const Outputs outputs = run_cuda(c, grad_y, count_pairs(c));
  const auto expected = outputs.all();
  const auto with_moved_gradient = run_cuda(c, moved(grad_y), count_pairs(c)).all();
  const auto with_moved_activations =
      Outputs{outputs.y, {}, run_backward(c, grad_y, moved(outputs.pre_AG))}.all();
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(with_moved_gradient[i], expected[i])) << i;
    EXPECT_TRUE(at::equal(with_moved_activations[i], expected[i])) << i;
  }
  const Case all_moved{moved(c.x_TD), moved(c.gates_TE), moved(c.gate_up_proj), moved(c.down_proj)};
  const auto with_all_moved = run_cuda(all_moved, moved(grad_y), count_pairs(c)).all();
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_LT(reference::error(with_all_moved[i], expected[i].to(at::kDouble)), bound(at::kBFloat16)) << i;
}

TEST_P(MoeFfnOnHost, refuses_unknown_products) {
  setenv("DTOPP_MOE_KERNELS", "fast", 1);
  const Case c = make_case({20, 8, 8, 4, 0.5}, at::kBFloat16);
  EXPECT_THAT([&] { run_inference(c, 0); },
              testing::ThrowsMessage<c10::Error>(
                  testing::HasSubstr("DTOPP_MOE_KERNELS: expected grouped_mm, fused or a list of activation, "
                                     "projection, activation_gradient, input_gradient, down_gradient, "
                                     "gate_up_gradient, got 'fast'")));
}

TEST_P(MoeFfnOnHost, gives_gradients_only_where_needed) {
  const Case c = make_case({20, 8, 8, 4, 0.5}, types().front());
  const at::Tensor grad_y = at::randn(c.x_TD.sizes()).to(types().front());
  const auto full = run_cuda(c, grad_y, count_pairs(c)).all();
  for (size_t i = 0; i < 4; ++i) {
    std::array<bool, 4> needed{};
    needed[i] = true;
    const auto some = run_cuda(c, grad_y, count_pairs(c), needed).all();
    for (size_t j = 0; j < 4; ++j) EXPECT_EQ(some[j + 1].defined(), i == j);
    EXPECT_TRUE(at::equal(some[i + 1], full[i + 1]));
  }
}

}  // namespace
}  // namespace dtopp::ops::moe_ffn_test
