#include <gtest/gtest.h>

#include "dtopp/moe/make_router.h"

namespace dtopp::moe {
namespace {

// For each number of experts, the rows of the tokens that use it are those of Top-k.
TEST(SelectLikeliest, gives_each_token_the_top_k_of_its_own_number) {
  config::RunConfig config;
  config.model.num_experts = 8;
  for (const config::Normalization normalization :
       {config::Normalization::kNone, config::Normalization::kFixed, config::Normalization::kDynamic}) {
    config.routing.normalization = normalization;
    config.routing.method = config::RoutingMethod::kDTopP;
    const auto router = make_router(config, at::kCPU);
    const at::Tensor counts_T = at::randint(1, 9, {60}, at::kLong), grad_TE = at::randn({60, 8});
    const at::Tensor z_TE = at::randn({60, 8}).requires_grad_(), scale = at::full({}, 1.5).requires_grad_();
    const ops::RouteOutput output = router->select_likeliest({0, z_TE, scale}, counts_T);
    EXPECT_TRUE(output.gates_TE.ne(0).sum(1).equal(counts_T));
    EXPECT_TRUE(output.tokens_per_expert_E.equal(output.gates_TE.ne(0).sum(0)));
    output.gates_TE.backward(grad_TE);

    at::Tensor grad_scale = at::zeros({});
    config.routing.method = config::RoutingMethod::kTopK;
    for (int64_t k = 1; k <= 8; ++k) {
      config.routing.experts = {static_cast<double>(k)};
      const at::Tensor rows = counts_T.eq(k), z_NE = z_TE.detach().index({rows}).requires_grad_();
      const at::Tensor own_scale = at::full({}, 1.5).requires_grad_();
      const at::Tensor gates_NE = make_router(config, at::kCPU)->select({0, z_NE, own_scale}).gates_TE;
      EXPECT_TRUE(output.gates_TE.index({rows}).allclose(gates_NE, 1e-6, 1e-7)) << k;
      EXPECT_TRUE(output.gates_TE.index({rows}).ne(0).equal(gates_NE.ne(0))) << k;
      gates_NE.backward(grad_TE.index({rows}));
      EXPECT_TRUE(z_TE.grad().index({rows}).allclose(z_NE.grad(), 1e-5, 1e-6)) << k;
      if (normalization == config::Normalization::kDynamic) grad_scale += own_scale.grad();
    }
    if (normalization == config::Normalization::kDynamic) {
      EXPECT_TRUE(scale.grad().allclose(grad_scale, 1e-4, 1e-5));
    }
  }
}

TEST(SelectLikeliest, takes_the_lower_index_of_equal_experts) {
  config::RunConfig config;
  config.model.num_experts = 4;
  config.routing.normalization = config::Normalization::kNone;
  const auto router = make_router(config, at::kCPU);
  const at::Tensor gates_TE =
      router->select_likeliest({0, at::zeros({1, 4}), at::ones({})}, at::full({1}, 2, at::kLong)).gates_TE;
  EXPECT_TRUE(gates_TE.equal(at::tensor({0.5F, 0.5F, 0.0F, 0.0F}).view({1, 4})));
}

}  // namespace
}  // namespace dtopp::moe
