// Tests that the operators refuse invalid arguments, including the operators that only autograd calls.
#include "tests/ops/wrong_arguments.h"

namespace dtopp::ops::wrong_arguments {
namespace {

Call fitting_call(const std::string& op) {
  for (const Call& call : fitting_calls()) {
    if (call.op == op) return call;
  }
  throw std::out_of_range(op);
}

void expect_error(const std::string& op, size_t index, const c10::IValue& argument,
                  const std::string& message) {
  Call call = fitting_call(op);
  call.arguments.at(index) = argument;
  try {
    run(call, c10::DispatchKey::CPU);
    ADD_FAILURE() << "no error: " << message;
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), testing::StartsWith(message));
  }
}

at::Tensor pairs(std::initializer_list<int64_t> experts_and_tokens) {
  return at::tensor(at::ArrayRef<int64_t>(experts_and_tokens), at::kLong).view({-1, 2});
}

TEST(WrongArguments, of_type_device_or_shape_are_refused) {
  // Another number of tokens, experts or ids is valid if no other argument has that dimension.
  expect_refused(
      c10::DispatchKey::CPU,
      {"route logits_TE double", "route logits_TE longer", "route logits_TE narrower",
       "route logits_TE shorter", "route logits_TE wider", "cumulative_prob_histogram logits_TE double",
       "cumulative_prob_histogram logits_TE longer", "cumulative_prob_histogram logits_TE narrower",
       "cumulative_prob_histogram logits_TE shorter", "cumulative_prob_histogram logits_TE wider",
       "linear_cross_entropy weight_VD longer", "linear_cross_entropy weight_VD shorter",
       "linear_cross_entropy_forward weight_VD longer", "linear_cross_entropy_forward weight_VD shorter",
       "token_log_probs weight_VD longer", "token_log_probs weight_VD shorter"});
}

TEST(WrongArguments, pairs_of_no_expert_or_token_are_refused) {
  for (const at::Tensor& wrong : {pairs({4, 0}), pairs({-1, 0}), pairs({0, 6}), pairs({0, -1}),
                                  pairs({0, 0, int64_t{1} << 62, 0}), pairs({0, int64_t{1} << 40})}) {
    for (const std::string op : {"moe_ffn_forward", "moe_ffn_pre_activations"})
      expect_error(op, 2, wrong,
                   op + ": expected pairs (expert, token) in ascending order, experts from 0 to 3 and "
                        "tokens from 0 to 5");
  }
}

TEST(WrongArguments, pairs_out_of_order_or_twice_are_refused) {
  for (const at::Tensor& wrong : {pairs({1, 0, 0, 0}), pairs({0, 3, 0, 2}), pairs({2, 5, 2, 5})})
    expect_error("moe_ffn_forward", 2, wrong, "moe_ffn_forward: expected pairs (expert, token) in ascending");
}

TEST(WrongArguments, another_number_of_pre_activations_is_refused) {
  const at::Tensor pre = fitting_call("moe_ffn_backward").arguments[5].toTensor();
  const std::string expected = "moe_ffn_backward: expected pre_activations of " + std::to_string(pre.size(0));
  expect_error("moe_ffn_backward", 5, pre.slice(0, 1), expected);
  expect_error("moe_ffn_backward", 5, pre.slice(0, 0, 0), expected);
}

TEST(WrongArguments, numbers_out_of_range_are_refused) {
  expect_error("moe_ffn", 4, -1, "moe_ffn: expected capacity of at least 0, got -1");
  expect_error("route_backward", 7, "layer", "route_backward: expected normalization none, fixed or dynamic");
  for (const int64_t target : {-1, 9}) {
    const at::Tensor targets = at::full({6}, target, at::kLong);
    expect_error("linear_cross_entropy_forward", 2, targets, "linear_cross_entropy: expected targets from 0");
    expect_error("token_log_probs", 2, targets, "token_log_probs: expected targets from 0 to 8");
  }
}

TEST(WrongArguments, heads_that_do_not_divide_the_hidden_size_are_refused) {
  for (const int64_t width : {0, 3, 6, 16}) {
    Call call = fitting_call("norm_rotary_forward");
    call.arguments[2] = call.arguments[3] = at::zeros({6, width});
    EXPECT_THROW(run(call, c10::DispatchKey::CPU), c10::Error) << width;
  }
}

}  // namespace
}  // namespace dtopp::ops::wrong_arguments
