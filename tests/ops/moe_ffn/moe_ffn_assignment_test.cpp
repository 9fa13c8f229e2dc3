#include <limits>

#include <gtest/gtest.h>

#include "dtopp/ops/moe_ffn/moe_ffn_cpu.h"

namespace dtopp::ops::moe_ffn_assignment_test {
namespace {

TEST(PairsOf, gates_are_those_of_nonzero_on_any_number_of_threads) {
  at::manual_seed(6);
  const int before = at::get_num_threads();
  for (const int threads : {1, 3}) {
    at::set_num_threads(threads);
    for (const auto type : {at::kFloat, at::kDouble}) {
      for (const auto& [tokens, experts] : {std::pair(0, 4), {1, 1}, {5, 16}, {300, 17}, {200, 130}}) {
        at::Tensor gates = at::rand({tokens, experts}).to(type);
        gates = at::where(gates > 0.9, gates, at::zeros_like(gates));
        if (tokens > 1) gates[1][experts - 1] = std::numeric_limits<double>::quiet_NaN();
        EXPECT_TRUE(at::equal(pairs_of(gates), at::nonzero(gates.t()))) << tokens << " x " << experts;
      }
    }
  }
  at::set_num_threads(before);
}

}  // namespace
}  // namespace dtopp::ops::moe_ffn_assignment_test
