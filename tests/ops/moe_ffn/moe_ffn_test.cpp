#include "dtopp/ops/moe_ffn/moe_ffn.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/ops/core/call_op.h"
#include "dtopp/ops/core/gradient_accumulation_hook.h"
#include "tests/ops/reference.h"

namespace dtopp::ops::moe_ffn_test {
namespace {

struct Case {
  at::Tensor x_TD, gates_TE, gate_up_proj, down_proj;

  std::vector<at::Tensor*> all() { return {&x_TD, &gates_TE, &gate_up_proj, &down_proj}; }
};

// A token selects each expert with the given probability.
Case make_case(int64_t tokens, int64_t hidden, int64_t ffn, int64_t experts, double chance,
               at::ScalarType dtype = at::kFloat) {
  at::manual_seed(7);
  const auto real = at::TensorOptions().dtype(dtype);
  const at::Tensor gates = at::rand({tokens, experts}).lt(chance).mul(at::rand({tokens, experts}).add(0.1));
  return {at::randn({tokens, hidden}).to(real), gates, at::randn({experts, 2 * ffn, hidden}).div(4).to(real),
          at::randn({experts, hidden, ffn}).div(4).to(real)};
}

Case require_gradients(Case c, at::ScalarType dtype) {
  for (at::Tensor* tensor : c.all()) *tensor = tensor->detach().to(dtype).clone().requires_grad_();
  return c;
}

void expect_matches_reference(const Case& given, double bound) {
  Case c = given;
  for (at::Tensor* tensor : c.all()) *tensor = tensor->detach().clone().requires_grad_();
  Case exact = require_gradients(given, at::kDouble);
  const at::Tensor y = moe_ffn(c.x_TD, c.gates_TE, c.gate_up_proj, c.down_proj);
  const at::Tensor expected =
      reference::moe_ffn(exact.x_TD, exact.gates_TE, exact.gate_up_proj, exact.down_proj);
  EXPECT_LT(reference::error(y, expected), bound);
  const at::Tensor grad = at::randn(y.sizes()).to(y.scalar_type());
  y.backward(grad);
  expected.backward(grad.to(at::kDouble));
  const at::Tensor chosen = given.gates_TE != 0;
  EXPECT_LT(reference::error(c.x_TD.grad(), exact.x_TD.grad()), bound);
  EXPECT_LT(reference::error(c.gates_TE.grad(), exact.gates_TE.grad() * chosen), bound);
  EXPECT_LT(reference::error(c.gate_up_proj.grad(), exact.gate_up_proj.grad()), bound);
  EXPECT_LT(reference::error(c.down_proj.grad(), exact.down_proj.grad()), bound);
  EXPECT_EQ(c.down_proj.grad().scalar_type(), given.down_proj.scalar_type());
}

// Compares the pre-activations that the backward pass computes again with a reference, and the gradients that
// it computes from them with those from the stored ones, to the bit.
void expect_recomputes_the_same(const Case& given, double bound) {
  const at::Tensor pairs_A2 = at::nonzero(given.gates_TE.t());
  const at::Tensor pre_AG = call_op<"dtopp::moe_ffn_pre_activations",
                                    at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                               const at::Tensor&, const at::Tensor&)>(
      given.x_TD, given.gates_TE, pairs_A2, given.gate_up_proj, given.down_proj);
  const auto exact = [](const at::Tensor& tensor) { return tensor.to(at::kDouble); };
  EXPECT_EQ(pre_AG.scalar_type(), given.x_TD.scalar_type());
  EXPECT_LT(reference::error(pre_AG, reference::pre_activations(exact(given.x_TD), given.gates_TE,
                                                                exact(given.gate_up_proj))),
            bound);
  std::vector<std::vector<at::Tensor>> results;
  const at::Tensor grad = at::randn(given.x_TD.sizes()).to(given.x_TD.scalar_type());
  for (const bool recompute : {false, true}) {
    Case c = given;
    for (at::Tensor* tensor : c.all()) *tensor = tensor->detach().clone().requires_grad_();
    const at::Tensor y = moe_ffn(c.x_TD, c.gates_TE, c.gate_up_proj, c.down_proj, /*capacity=*/0, recompute);
    y.backward(grad);
    results.push_back({y, c.x_TD.grad(), c.gates_TE.grad(), c.gate_up_proj.grad(), c.down_proj.grad()});
  }
  for (size_t i = 0; i < results[0].size(); ++i) EXPECT_TRUE(results[0][i].equal(results[1][i])) << i;
}

// A target to which a parameter's gradients are added.
class Sum : public GradientAccumulationHook {
 public:
  explicit Sum(AccumulationTarget target) : target_(std::move(target)) {}
  AccumulationTarget target() override { return target_; }
  void complete(const AccumulationTarget& target) override {
    EXPECT_TRUE(target.sum.is_same(target_.sum) && target.add == target_.add);
    times_ += 1;
  }
  void operator()(const at::Tensor& leaf) override { handed_over_ += leaf.grad().defined() ? 1 : 0; }

  int times() const { return times_; }
  int handed_over() const { return handed_over_; }

 private:
  AccumulationTarget target_;
  int times_ = 0, handed_over_ = 0;
};

// Compares the weights' gradients from autograd with those that the op adds to accumulators.
void expect_sums_match(const Case& given, double bound) {
  Case plain = require_gradients(given, given.x_TD.scalar_type()),
       summed = require_gradients(given, given.x_TD.scalar_type());
  for (Case* c : {&plain, &summed}) c->gates_TE = given.gates_TE.clone().requires_grad_();
  const at::Tensor before = at::randn(given.gate_up_proj.sizes());
  const AccumulationTarget gate_up{before.clone(), true}, down{at::full(given.down_proj.sizes(), NAN), false};
  const auto set_sum = [](const at::Tensor& leaf, const AccumulationTarget& target) {
    auto sum = std::make_unique<Sum>(target);
    Sum& set = *sum;
    torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::move(sum));
    return std::ref(set);
  };
  const Sum &gate_up_sum = set_sum(summed.gate_up_proj, gate_up), &down_sum = set_sum(summed.down_proj, down);
  const at::Tensor grad = at::randn(given.x_TD.sizes()).to(given.x_TD.scalar_type());
  for (Case* c : {&plain, &summed})
    moe_ffn(c->x_TD, c->gates_TE, c->gate_up_proj, c->down_proj).backward(grad);
  EXPECT_TRUE(summed.x_TD.grad().equal(plain.x_TD.grad()));
  EXPECT_TRUE(summed.gates_TE.grad().equal(plain.gates_TE.grad()));
  EXPECT_FALSE(summed.gate_up_proj.grad().defined() || summed.down_proj.grad().defined());
  EXPECT_LT(reference::error(gate_up.sum - before, plain.gate_up_proj.grad()), bound);
  EXPECT_LT(reference::error(down.sum, plain.down_proj.grad()), bound);
  for (const Sum* sum : {&gate_up_sum, &down_sum}) {
    EXPECT_EQ(sum->times(), 1);
    EXPECT_EQ(sum->handed_over(), 0);
  }
}

constexpr double kFloatBound = 1e-5;
constexpr double kBfloat16Bound =
    1.0 / 64;  // 2^-8 for rounded pre-activations and for the rounded result, doubled

TEST(MoeFfn, matches_double_precision_for_any_number_of_experts_per_token) {
  for (const double chance : {0.1, 0.5, 1.0}) {
    expect_matches_reference(make_case(90, 24, 12, 6, chance), kFloatBound);
    expect_matches_reference(make_case(90, 24, 12, 6, chance, at::kBFloat16), kBfloat16Bound);
  }
}

// The work is split differently for few and many rows per expert. The backward pass switches at fewer rows.
TEST(MoeFfn, matches_double_precision_for_any_number_of_tokens_per_expert) {
  for (const int64_t tokens : {1, 40, 180, 200, 360, 420, 900}) {
    expect_matches_reference(make_case(tokens, 40, 36, 3, 0.95), kFloatBound);
    expect_matches_reference(make_case(tokens, 40, 36, 3, 0.95, at::kBFloat16), kBfloat16Bound);
  }
  // More columns than are packed at once, and many weights per expert.
  expect_matches_reference(make_case(150, 530, 270, 3, 0.5), kFloatBound);
  expect_matches_reference(make_case(400, 1100, 1300, 1, 1.0), kFloatBound);
}

TEST(MoeFfn, matches_where_an_expert_has_more_rows_than_a_block_or_group) {
  expect_matches_reference(make_case(9500, 16, 8, 3, 0.9), kFloatBound);
  expect_matches_reference(make_case(9500, 16, 8, 3, 0.9, at::kBFloat16), kBfloat16Bound);
}

TEST(MoeFfn, matches_for_widths_no_vector_divides) {
  expect_matches_reference(make_case(31, 13, 7, 3, 0.6), kFloatBound);
  expect_matches_reference(make_case(31, 13, 7, 3, 0.6, at::kBFloat16), kBfloat16Bound);
  expect_matches_reference(make_case(850, 13, 7, 2, 0.6, at::kBFloat16), kBfloat16Bound);
}

TEST(MoeFfn, matches_for_widths_of_whole_tiles) {
  expect_matches_reference(make_case(900, 128, 64, 3, 0.6), kFloatBound);
  expect_matches_reference(make_case(900, 128, 64, 3, 0.6, at::kBFloat16), kBfloat16Bound);
}

TEST(MoeFfn, adds_the_gradients_of_weights_to_sums_as_it_forms_them) {
  for (const int64_t tokens : {1, 40, 420, 4500}) {
    expect_sums_match(make_case(tokens, 40, 36, 3, 0.95), kFloatBound);
    expect_sums_match(make_case(tokens, 40, 36, 3, 0.95, at::kBFloat16), 1.0 / 256);
  }
  Case c = make_case(20, 8, 4, 4, 1.0);
  c.gates_TE.select(1, 2).zero_();
  expect_sums_match(c, kFloatBound);
}

// Few and many rows per expert, widths of no and of whole tiles, more rows than a block, and no tokens.
TEST(MoeFfn, recomputes_the_pre_activations_to_the_bit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const double bound = dtype == at::kFloat ? kFloatBound : kBfloat16Bound;
    expect_recomputes_the_same(make_case(0, 8, 4, 3, 0.5, dtype), bound);
    expect_recomputes_the_same(make_case(31, 13, 7, 3, 0.6, dtype), bound);
    expect_recomputes_the_same(make_case(90, 24, 12, 6, 0.3, dtype), bound);
    expect_recomputes_the_same(make_case(900, 128, 64, 3, 0.6, dtype), bound);
    expect_recomputes_the_same(make_case(5000, 16, 8, 3, 0.9, dtype), bound);
  }
  expect_recomputes_the_same(make_case(150, 530, 270, 3, 0.5), kFloatBound);
}

TEST(MoeFfn, hands_gradients_over_where_a_weight_has_no_sum) {
  Case c = require_gradients(make_case(20, 8, 4, 4, 1.0), at::kFloat);
  auto sum = std::make_unique<Sum>(AccumulationTarget{at::zeros(c.down_proj.sizes()), true});
  const Sum& down = *sum;
  torch::autograd::impl::set_post_acc_grad_hooks(c.down_proj, std::move(sum));
  moe_ffn(c.x_TD, c.gates_TE, c.gate_up_proj, c.down_proj).sum().backward();
  EXPECT_EQ(down.handed_over(), 1);
  EXPECT_EQ(down.times(), 0);
  EXPECT_TRUE(c.down_proj.grad().defined() && c.gate_up_proj.grad().defined());
}

TEST(MoeFfn, no_tokens_give_no_rows_and_zero_weight_gradients) {
  const Case c = require_gradients(make_case(0, 8, 4, 3, 0.5), at::kFloat);
  const at::Tensor y = moe_ffn(c.x_TD, c.gates_TE, c.gate_up_proj, c.down_proj);
  EXPECT_THAT(y.sizes(), testing::ElementsAre(0, 8));
  y.sum().backward();
  EXPECT_FALSE(c.gate_up_proj.grad().any().item<bool>());
  EXPECT_FALSE(c.down_proj.grad().any().item<bool>());
}

TEST(MoeFfn, experts_without_tokens_have_zero_gradients) {
  Case c = make_case(20, 8, 4, 4, 1.0);
  c.gates_TE.select(1, 2).zero_();
  c = require_gradients(c, at::kFloat);
  moe_ffn(c.x_TD, c.gates_TE, c.gate_up_proj, c.down_proj).square().sum().backward();
  EXPECT_FALSE(c.gate_up_proj.grad()[2].any().item<bool>());
  EXPECT_FALSE(c.down_proj.grad()[2].any().item<bool>());
  EXPECT_FALSE(c.gates_TE.grad().select(1, 2).any().item<bool>());
  EXPECT_TRUE(c.gate_up_proj.grad()[1].any().item<bool>());
}

TEST(MoeFfn, tokens_without_experts_are_zero) {
  Case c = make_case(20, 8, 4, 4, 1.0);
  c.gates_TE[5].zero_();
  EXPECT_FALSE(moe_ffn(c.x_TD, c.gates_TE, c.gate_up_proj, c.down_proj)[5].any().item<bool>());
}

TEST(MoeFfn, a_token_that_is_not_finite_does_not_touch_the_others) {
  Case c = make_case(20, 8, 4, 4, 0.5);
  const at::Tensor clean = moe_ffn(c.x_TD, c.gates_TE, c.gate_up_proj, c.down_proj);
  c.gates_TE[3].fill_(std::numeric_limits<float>::quiet_NaN());
  const at::Tensor y = moe_ffn(c.x_TD, c.gates_TE, c.gate_up_proj, c.down_proj);
  EXPECT_TRUE(y[3].isnan().all().item<bool>());
  EXPECT_TRUE(at::isfinite(y.slice(0, 4)).all().item<bool>());
  EXPECT_LT(reference::error(y.slice(0, 4), clean.slice(0, 4)), kFloatBound);
}

TEST(MoeFfn, names_itself_in_errors) {
  const Case c = make_case(5, 8, 4, 3, 0.5);
  try {
    moe_ffn(c.x_TD, c.gates_TE.narrow(0, 0, 4), c.gate_up_proj, c.down_proj);
    FAIL() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                testing::StartsWith("moe_ffn: expected gates of shape [5, experts], got [4, 3]"));
  }
}

}  // namespace
}  // namespace dtopp::ops::moe_ffn_test
