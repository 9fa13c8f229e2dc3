#include <gtest/gtest.h>

#include "dtopp/ops/gemm/linear.h"
#include "dtopp/ops/moe_ffn/moe_ffn.h"
#include "tests/ops/reference.h"

namespace dtopp::ops::moe_ffn_by_row_test {
namespace {

struct Case {
  at::Tensor x_TD, gates_TE, gate_up_proj, down_proj;

  at::Tensor rows(int64_t first, int64_t count) const {
    return moe_ffn_by_row(x_TD.narrow(0, first, count), gates_TE.narrow(0, first, count), gate_up_proj,
                          down_proj);
  }
};

// A token selects each expert with the given probability.
Case make_case(int64_t tokens, int64_t hidden, int64_t ffn, int64_t experts, double chance,
               at::ScalarType dtype) {
  at::manual_seed(7);
  return {at::randn({tokens, hidden}).to(dtype),
          at::rand({tokens, experts}).lt(chance).mul(at::rand({tokens, experts}).add(0.1)),
          at::randn({experts, 2 * ffn, hidden}).div(4).to(dtype),
          at::randn({experts, hidden, ffn}).div(4).to(dtype)};
}

// Few and many tokens, widths that fill no register, an expert with more rows than a block, no pairs.
const std::vector<std::array<int64_t, 4>> kShapes = {{1, 64, 32, 8},   {5, 40, 12, 6},   {300, 70, 33, 3},
                                                     {9, 200, 130, 5}, {40, 8, 100, 16}, {0, 16, 16, 4}};

// bf16 rounds the activations and the result (2^-8 relative).
TEST(MoeFfnByRow, matches_double_precision) {
  for (const auto& [dtype, bound] : {std::pair(at::kFloat, 1e-5), std::pair(at::kBFloat16, 2.0 / 256)}) {
    for (const auto& [tokens, hidden, ffn, experts] : kShapes) {
      for (const double chance : {0.0, 0.3, 1.0}) {
        const Case c = make_case(tokens, hidden, ffn, experts, chance, dtype);
        const at::Tensor y = c.rows(0, tokens);
        EXPECT_EQ(y.scalar_type(), dtype);
        EXPECT_LT(reference::error(
                      y, reference::moe_ffn(c.x_TD.to(at::kDouble), c.gates_TE.to(at::kDouble),
                                            c.gate_up_proj.to(at::kDouble), c.down_proj.to(at::kDouble))),
                  bound)
            << tokens << " x " << hidden << ", " << dtype << ", " << chance;
      }
    }
  }
}

TEST(MoeFfnByRow, a_row_does_not_depend_on_the_other_rows) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    if (dtype == at::kBFloat16 && has_amx()) continue;  // the last bits depend on the number of rows
    const Case c = make_case(300, 70, 33, 5, 0.6, dtype);
    const at::Tensor all = c.rows(0, 300);
    for (const int64_t count : {1, 3, 31, 32, 200})
      EXPECT_TRUE(at::equal(c.rows(4, count), all.narrow(0, 4, count))) << dtype << ' ' << count;
  }
}

TEST(MoeFfnByRow, refuses_wrong_shapes) {
  const Case c = make_case(3, 16, 8, 4, 0.5, at::kBFloat16);
  EXPECT_THROW(moe_ffn_by_row(c.x_TD, c.gates_TE, c.down_proj, c.down_proj), c10::Error);
  EXPECT_THROW(moe_ffn_by_row(c.x_TD.to(at::kFloat), c.gates_TE, c.gate_up_proj, c.down_proj), c10::Error);
}

}  // namespace
}  // namespace dtopp::ops::moe_ffn_by_row_test
