// Tests the arguments that the CUDA side of the operators refuses before it launches a kernel.
#include "tests/ops/wrong_arguments.h"

#include "dtopp/ops/cuda/cuda_types.h"
#include "tests/ops/cuda/on_host.h"

namespace dtopp::ops::wrong_arguments {
namespace {

TEST(WrongArgumentsOnHost, of_type_device_or_shape_are_refused) {
  // The same mistakes as on a CPU are accepted. Of the pairs, only their number counts, which is the
  // capacity.
  expect_refused(c10::DispatchKey::CUDA, {"route logits_TE double",
                                          "route logits_TE longer",
                                          "route logits_TE narrower",
                                          "route logits_TE shorter",
                                          "route logits_TE wider",
                                          "cumulative_prob_histogram logits_TE double",
                                          "cumulative_prob_histogram logits_TE longer",
                                          "cumulative_prob_histogram logits_TE narrower",
                                          "cumulative_prob_histogram logits_TE shorter",
                                          "cumulative_prob_histogram logits_TE wider",
                                          "moe_ffn_forward pairs_A2 longer",
                                          "moe_ffn_forward pairs_A2 shorter",
                                          "moe_ffn_pre_activations pairs_A2 longer",
                                          "moe_ffn_pre_activations pairs_A2 shorter",
                                          "moe_ffn_backward pre_activations_AG longer",
                                          "moe_ffn_backward pre_activations_AG shorter",
                                          "moe_ffn_backward_sums pre_activations_AG longer",
                                          "moe_ffn_backward_sums pre_activations_AG shorter",
                                          "linear_cross_entropy weight_VD longer",
                                          "linear_cross_entropy weight_VD shorter",
                                          "linear_cross_entropy_forward weight_VD longer",
                                          "linear_cross_entropy_forward weight_VD shorter",
                                          "token_log_probs weight_VD longer",
                                          "token_log_probs weight_VD shorter"});
}

TEST(WrongArgumentsOnHost, more_than_the_kernels_hold_is_refused) {
  const auto expect_error = [](const Call& call, const std::string& message) {
    try {
      run(call, c10::DispatchKey::CUDA);
      ADD_FAILURE() << "no error: " << message;
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what_without_backtrace(), testing::StartsWith(message));
    }
  };
  const int64_t experts = cuda::kMostExperts + 1, hidden = cuda::kWidestNorm + 2;
  const at::Tensor one = at::ones({}), half = at::full({}, 0.5, at::kDouble);
  const at::Tensor logits = at::zeros({2, experts});
  const c10::IValue none;
  expect_error({"route", {logits, one, half, "dynamic", 0, 0, true, none, "logit", "probability", none}},
               "route: expected at most 2048 experts");
  expect_error({"route_backward", {logits, one, logits, none, none, none, none, "dynamic", true, "relu"}},
               "route_backward: expected at most 2048 experts");
  expect_error(
      {"moe_ffn",
       {at::zeros({2, 1}), logits, at::zeros({experts, 2, 1}), at::zeros({experts, 1, 1}), 0, false}},
      "moe_ffn: expected at most 2048 experts");
  const at::Tensor angle = at::zeros({1, 2});
  expect_error(
      {"norm_rotary_forward", {at::zeros({1, hidden}), at::zeros({hidden}), angle, angle, 1e-5, true}},
      "norm_rotary: expected a gain of at most 12280");
}

}  // namespace
}  // namespace dtopp::ops::wrong_arguments
