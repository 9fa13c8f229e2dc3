// Tests squared_norms on the CPU, and its CUDA kernel run on a CPU, against double precision.
#include "dtopp/ops/optimizer/squared_norms.h"

#include <gtest/gtest.h>

#include "tests/ops/cuda/on_host.h"

namespace dtopp::ops::squared_norms_test {
namespace {

at::Tensor run_cuda(const at::Tensor& values, const at::Tensor& offsets) {
  const PoisonedMemory poisoned;
  return call_cuda<at::Tensor(const at::Tensor&, const at::Tensor&)>("dtopp::squared_norms", values, offsets);
}

at::Tensor offsets_of(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> offsets = {0};
  for (const int64_t size : sizes) offsets.push_back(offsets.back() + size);
  return at::tensor(offsets, at::kLong);
}

TEST(SquaredNorms, equal_double_precision) {
  at::manual_seed(3);
  for (const std::vector<int64_t>& sizes :
       std::vector<std::vector<int64_t>>{{}, {1}, {0, 5}, {255, 256, 257, 1}, {3000, 64, 0, 7}}) {
    const at::Tensor offsets = offsets_of(sizes);
    const at::Tensor values = at::randn({offsets[-1].item<int64_t>()}) * 100;
    const at::Tensor cpu = squared_norms(values, offsets), cuda = run_cuda(values, offsets);
    ASSERT_EQ(cpu.numel(), std::ssize(sizes));
    ASSERT_EQ(cuda.sizes(), cpu.sizes());
    for (size_t u = 0; u < sizes.size(); ++u) {
      const auto part = static_cast<int64_t>(u);
      const double exact = values.narrow(0, offsets[part].item<int64_t>(), sizes[u])
                               .to(at::kDouble)
                               .square()
                               .sum()
                               .item<double>();
      EXPECT_NEAR(cpu[part].item<double>(), exact, 1e-12 * exact);
      EXPECT_NEAR(cuda[part].item<double>(), exact, 1e-12 * exact);
    }
  }
}

TEST(SquaredNorms, of_a_part_have_the_same_bits_whatever_surrounds_it) {
  at::manual_seed(4);
  const at::Tensor values = at::randn({5000});
  const at::Tensor all = offsets_of({1001, 1999, 2000}), second = offsets_of({1999});
  const at::Tensor part = values.narrow(0, 1001, 1999);
  EXPECT_EQ(squared_norms(values, all)[1].item<double>(), squared_norms(part, second)[0].item<double>());
  EXPECT_EQ(run_cuda(values, all)[1].item<double>(), run_cuda(part, second)[0].item<double>());
}

TEST(SquaredNorms, do_not_overflow_and_pass_on_what_is_not_finite) {
  const at::Tensor offsets = offsets_of({2, 2, 2});
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor values = at::tensor({1e30F, 1e30F, 1.0F, inf, nan, 1.0F});
  for (const at::Tensor& squares : {squared_norms(values, offsets), run_cuda(values, offsets)}) {
    EXPECT_NEAR(squares[0].item<double>(), 2e60, 1e54);
    EXPECT_EQ(squares[1].item<double>(), inf);
    EXPECT_TRUE(std::isnan(squares[2].item<double>()));
  }
}

TEST(SquaredNorms, refuse_other_shapes_and_types) {
  const at::Tensor values = at::zeros({4}), offsets = offsets_of({4});
  EXPECT_THROW(squared_norms(values.view({2, 2}), offsets), c10::Error);
  EXPECT_THROW(squared_norms(values.to(at::kDouble), offsets), c10::Error);
  EXPECT_THROW(squared_norms(values, offsets.to(at::kInt)), c10::Error);
  EXPECT_THROW(squared_norms(values, at::zeros({0}, at::kLong)), c10::Error);
}

}  // namespace
}  // namespace dtopp::ops::squared_norms_test
