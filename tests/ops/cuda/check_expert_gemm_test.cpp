// Tests the check that fused kernels must pass before use, with the kernels run on a CPU. The check accepts
// correct kernels and detects each kind of wrong result.
#include <cmath>
#include <limits>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/ops/core/call_op.h"
#include "dtopp/ops/moe_ffn/cuda/tune/check_expert_gemm_cuda.h"
#include "tests/ops/cuda/on_host.h"

namespace dtopp::check_moe_product_test {
namespace {

using cuda::ProductErrors;
using cuda::ProductInputs;

constexpr double kMostError = 1.0 / 64;  // the limit of CheckedProduct

// The first cases of product_cases(); the others take long on a CPU.
constexpr size_t kQuickCases = 2;

std::vector<ExpertGemm> all_products() {
  std::vector<ExpertGemm> products;
  for (const auto name : kExpertGemmNames) products.push_back(*expert_gemm_named(name));
  return products;
}

// Changes the results of a fused kernel.
using Lie = std::function<void(std::vector<at::Tensor>& results, const ProductInputs& inputs)>;

// The results of each product, computed once.
class Results {
 public:
  explicit Results(const ProductInputs& inputs) : inputs_(inputs) {}

  ProductErrors errors_with(ExpertGemm product, const Lie& lie) {
    return cuda::compare_product(product, {}, inputs_,
                                 [&](ExpertGemm which, const cuda::Pairs& pairs, const ProductInputs& given) {
                                   const bool fused = pairs.gemms.is_fused(which);
                                   auto [known, is_new] = results_.try_emplace({which, fused});
                                   if (is_new) known->second = cuda::run_product(which, pairs, given);
                                   std::vector<at::Tensor> results;
                                   for (const at::Tensor& result : known->second)
                                     results.push_back(result.clone());
                                   if (fused) lie(results, given);
                                   return results;
                                 });
  }

 private:
  const ProductInputs& inputs_;
  std::map<std::pair<ExpertGemm, bool>, std::vector<at::Tensor>> results_;
};

TEST(CheckExpertGemmOnHost, finds_the_kernels_right) {
  for (size_t n = 0; n < kQuickCases; ++n) {
    const ProductInputs inputs(cuda::product_cases()[n], at::kCPU);
    for (const ExpertGemm product : all_products()) {
      const ProductErrors errors = cuda::compare_product(product, {}, inputs);
      SCOPED_TRACE(testing::Message() << static_cast<int>(product) << " " << inputs.x_TD.sizes());
      EXPECT_LE(errors.fused, kMostError);
      EXPECT_LE(errors.grouped, kMostError);
      EXPECT_GT(errors.fused, 1e-5) << "bf16 rounds";
    }
  }
}

TEST(CheckExpertGemmOnHost, finds_every_lie) {
  const ProductInputs inputs({{3, 0, 5}, 16, 24}, at::kCPU);
  Results results(inputs);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::map<std::string, Lie> lies = {
      {"a tile of another product",
       [](auto& results, const auto& /*inputs*/) {
         at::Tensor tile = results[0].view({-1, results[0].size(-1)}).slice(0, 4, 7).slice(1, 0, 8);
         tile.copy_(at::randn_like(tile) * 0.5);
       }},
      {"a row that was not written",
       [](auto& results, const auto& /*inputs*/) {
         const at::Tensor written = results[0];
         results[0] = at::empty_like(written);
         const auto rows = [](const at::Tensor& all) { return all.view({-1, all.size(-1)}); };
         rows(results[0]).slice(0, 0, 6).copy_(rows(written).slice(0, 0, 6));
         rows(results[0]).slice(0, 7).copy_(rows(written).slice(0, 7));
       }},
      {"one number that is none",
       [=](auto& results, const auto& /*inputs*/) { results.back().view(-1)[5] = nan; }},
      {"one number that is infinite",
       [=](auto& results, const auto& /*inputs*/) { results.back().view(-1)[5] = INFINITY; }},
      {"numbers that are a little too large",
       [](auto& results, const auto& /*inputs*/) { results.back().mul_(1.05); }},
      {"what is in the rows past the pairs", [](auto& results, const auto& given) {
         if (results[0].dim() == 2)
           results[0].slice(0, given.pairs).fill_(1);
         else
           results[0][1].fill_(1);  // the gradient of an expert without rows
       }}};
  for (const ExpertGemm product : all_products()) {
    for (const auto& [name, lie] : lies) {
      const ProductErrors errors = results.errors_with(product, lie);
      SCOPED_TRACE(testing::Message() << static_cast<int>(product) << " " << name);
      EXPECT_GT(errors.fused, kMostError);
      EXPECT_LE(errors.grouped, kMostError);
    }
  }
}

TEST(CheckExpertGemmOnHost, takes_other_products_as_they_are) {
  const ProductInputs inputs(cuda::product_cases()[0], at::kCPU);
  std::vector<unsigned long> fused;
  cuda::compare_product(ExpertGemm::kDownGradient, FusedKernelSet("000101"), inputs,
                        [&](ExpertGemm product, const cuda::Pairs& pairs, const ProductInputs& given) {
                          fused.push_back(pairs.gemms.fused.to_ulong());
                          EXPECT_TRUE(pairs.gemms.grouped);
                          return cuda::run_product(product, pairs, given);
                        });
  EXPECT_EQ(fused, (std::vector<unsigned long>{0b010101, 0b000101}));
}

// GemmChoice per expert replace at::_grouped_mm when there are too many experts for it.
TEST(CheckExpertGemmOnHost, products_an_expert_go_with_own_kernels_too) {
  const ProductInputs inputs({{3, 0, 5}, 16, 24}, at::kCPU);
  for (const ExpertGemm product : all_products()) {
    const ProductErrors errors = cuda::compare_product(
        product, FusedKernelSet("010101"), inputs,
        [](ExpertGemm which, const cuda::Pairs& pairs, const ProductInputs& given) {
          return cuda::run_product(which, cuda::pairs_of(given, {pairs.gemms.fused, false}), given);
        });
    EXPECT_LE(errors.fused, kMostError) << static_cast<int>(product);
    EXPECT_LE(errors.grouped, kMostError) << static_cast<int>(product);
  }
}

TEST(CheckExpertGemmOnHost, is_an_operator_that_takes_known_products) {
  const auto call = [](const std::string& product, const std::string& fused) {
    using Numbers = std::tuple<double, double, double, double>;
    call_op<"dtopp::check_expert_gemm", Numbers(const std::string&, const std::string&, int64_t)>(
        product, fused, int64_t{0});
  };
  for (const auto& [product, fused] :
       {std::pair("activate", "fused"), std::pair("activation", "fast"), std::pair("", "")})
    EXPECT_THAT(
        [&] { call(product, fused); },
        testing::ThrowsMessage<c10::Error>(testing::HasSubstr("check_expert_gemm: expected one of ")));
}

// On the host the fused kernel runs thread by thread, so it is slower.
TEST(CheckExpertGemmOnHost, finds_which_is_faster) {
  const ProductInputs inputs(cuda::product_cases()[0], at::kCPU);
  const cuda::ProductTimes times = cuda::time_product(ExpertGemm::kDownGradient, {}, inputs);
  EXPECT_GT(times.grouped, 0);
  EXPECT_GT(times.fused, times.grouped);
}

}  // namespace
}  // namespace dtopp::check_moe_product_test
