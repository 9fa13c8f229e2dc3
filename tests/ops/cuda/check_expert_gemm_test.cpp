// Tests the check that fused kernels must pass before use, with the kernels run on a CPU. The check accepts
// correct kernels and detects each kind of wrong result.
#include <cmath>
#include <limits>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/ops/core/call_op.h"
#include "dtopp/ops/core/poisoned_memory.h"
#include "dtopp/ops/moe_ffn/cuda/tune/check_expert_gemm_cuda.h"
#include "tests/ops/cuda/on_host.h"

namespace dtopp::ops::check_expert_gemm_test {
namespace {

using cuda::ComparedResults;
using cuda::GemmErrors;
using cuda::GemmInputs;
using cuda::GemmResults;

constexpr double kMostError = 1.0 / 64;  // the limit of TunedGemm

// The first cases of gemm_cases(); the others take long on a CPU.
constexpr size_t kQuickCases = 2;

std::vector<ExpertGemm> all_gemms() {
  std::vector<ExpertGemm> gemms;
  for (const auto name : kExpertGemmNames) gemms.push_back(*expert_gemm_named(name));
  return gemms;
}

TEST(CheckExpertGemmOnHost, finds_the_kernels_right) {
  for (size_t n = 0; n < kQuickCases; ++n) {
    const GemmInputs inputs(cuda::gemm_cases()[n], at::kCPU);
    for (const ExpertGemm gemm : all_gemms()) {
      const GemmErrors errors = cuda::errors_of(cuda::run_compared(gemm, {}, inputs), inputs.pairs);
      SCOPED_TRACE(testing::Message() << static_cast<int>(gemm) << " " << inputs.x_TD.sizes());
      EXPECT_LE(errors.fused, kMostError);
      EXPECT_LE(errors.grouped, kMostError);
      EXPECT_GT(errors.fused, 1e-5) << "bf16 rounds";
    }
  }
}

// Changes the results of a fused kernel.
using Fault = void (*)(GemmResults& results, const GemmInputs& inputs);

TEST(CheckExpertGemmOnHost, finds_every_fault) {
  const GemmInputs inputs({{3, 0, 5}, 16, 24}, at::kCPU);
  static constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const std::map<std::string, Fault> faults = {
      {"a tile of another GEMM",
       [](GemmResults& results, const GemmInputs& /*inputs*/) {
         at::Tensor tile = results[0].view({-1, results[0].size(-1)}).slice(0, 4, 7).slice(1, 0, 8);
         tile.copy_(at::randn_like(tile) * 0.5);
       }},
      {"a row that was not written",
       [](GemmResults& results, const GemmInputs& /*inputs*/) {
         results[0].view({-1, results[0].size(-1)})[6].fill_(kNaN);
       }},
      {"one number that is none",
       [](GemmResults& results, const GemmInputs& /*inputs*/) { results.back().view(-1)[5] = kNaN; }},
      {"one number that is infinite",
       [](GemmResults& results, const GemmInputs& /*inputs*/) { results.back().view(-1)[5] = INFINITY; }},
      {"numbers that are a little too large",
       [](GemmResults& results, const GemmInputs& /*inputs*/) { results.back().mul_(1.05); }},
      {"a write to the rows beyond the pairs", [](GemmResults& results, const GemmInputs& given) {
         if (results[0].dim() == 2)
           results[0].slice(0, given.pairs).fill_(1);
         else
           results[0][1].fill_(1);  // the gradient of an expert without rows
       }}};
  for (const ExpertGemm gemm : all_gemms()) {
    const ComparedResults right = cuda::run_compared(gemm, {}, inputs);
    for (const auto& [name, fault] : faults) {
      ComparedResults results = right;
      for (at::Tensor& result : results.fused) result = result.clone();
      fault(results.fused, inputs);
      const GemmErrors errors = cuda::errors_of(results, inputs.pairs);
      SCOPED_TRACE(testing::Message() << static_cast<int>(gemm) << " " << name);
      EXPECT_GT(errors.fused, kMostError);
      EXPECT_LE(errors.grouped, kMostError);
    }
  }
}

TEST(CheckExpertGemmOnHost, keeps_the_choice_for_other_gemms) {
  const auto fused = [](bool fused) {
    const auto choice = cuda::choice_of(ExpertGemm::kDownGradient, FusedKernelSet("000101"), fused);
    EXPECT_TRUE(choice.grouped);
    return choice.fused.to_ulong();
  };
  EXPECT_EQ(fused(true), 0b010101U);
  EXPECT_EQ(fused(false), 0b000101U);
}

// One GEMM per expert replaces at::_grouped_mm when there are too many experts for it.
TEST(CheckExpertGemmOnHost, fused_kernels_go_with_one_gemm_per_expert) {
  const GemmInputs inputs({{3, 0, 5}, 16, 24}, at::kCPU);
  for (const ExpertGemm gemm : all_gemms()) {
    ComparedResults results = cuda::run_compared(gemm, {}, inputs);
    const auto run = [&](bool fused) {
      const FusedKernelSet set = cuda::choice_of(gemm, FusedKernelSet("010101"), fused).fused;
      return cuda::run_gemm(gemm, cuda::pairs_of(inputs, {set, false}), inputs);
    };
    const PoisonedMemory poisoned;
    results.fused = run(true);
    results.grouped = run(false);
    const GemmErrors errors = cuda::errors_of(results, inputs.pairs);
    EXPECT_LE(errors.fused, kMostError) << static_cast<int>(gemm);
    EXPECT_LE(errors.grouped, kMostError) << static_cast<int>(gemm);
  }
}

TEST(CheckExpertGemmOnHost, is_an_operator_that_takes_known_gemms) {
  const auto call = [](const std::string& gemm, const std::string& fused) {
    using Numbers = std::tuple<double, double, double, double>;
    call_op<"dtopp::check_expert_gemm", Numbers(const std::string&, const std::string&, int64_t)>(gemm, fused,
                                                                                                  int64_t{0});
  };
  for (const auto& [gemm, fused] :
       {std::pair("activate", "fused"), std::pair("activation", "fast"), std::pair("", "")})
    EXPECT_THAT([&] { call(gemm, fused); }, testing::ThrowsMessage<c10::Error>(
                                                testing::HasSubstr("check_expert_gemm: expected one of ")));
}

// On the host the fused kernel runs thread by thread, so it is slower.
TEST(CheckExpertGemmOnHost, finds_which_is_faster) {
  const GemmInputs inputs(cuda::gemm_cases()[0], at::kCPU);
  const cuda::GemmTimes times = cuda::time_gemm(ExpertGemm::kDownGradient, {}, inputs);
  EXPECT_GT(times.grouped, 0);
  EXPECT_GT(times.fused, times.grouped);
}

}  // namespace
}  // namespace dtopp::ops::check_expert_gemm_test
