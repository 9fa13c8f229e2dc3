#include <limits>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/record_function.h>

#include "dtopp/ops/core/torch.h"
#include "dtopp/train/replay.h"

namespace dtopp::train {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;

TEST(NonfiniteWatch, finds_the_first_operation_of_a_forward_pass) {
  const at::Tensor x = at::tensor({4.0, 3.0, -1.0, 2.0}).view({2, 2});
  const NonfiniteWatch watch;
  at::Tensor y;
  {
    RECORD_USER_SCOPE(std::string("outer"));
    {
      RECORD_USER_SCOPE(std::string("inner"));
      y = at::log(x * 2);
    }
    y = at::exp(y);
  }
  ASSERT_TRUE(watch.origin());
  EXPECT_EQ(watch.origin()->operation, "aten::log");
  EXPECT_EQ(watch.origin()->pass, Pass::kForward);
  EXPECT_THAT(watch.origin()->scopes, ElementsAre("outer", "inner"));
  EXPECT_EQ(watch.origin()->nan, 1);
  EXPECT_EQ(watch.origin()->infinite, 0);
  EXPECT_THAT(watch.origin()->first_index, ElementsAre(1, 0));
  EXPECT_EQ(watch.origin()->type, "Double [2, 2]");
  EXPECT_THAT(watch.origin()->largest_input, DoubleEq(8));
}

TEST(NonfiniteWatch, names_the_forward_scope_of_a_gradient) {
  const at::Tensor x = at::tensor({4.0, 0.0}).requires_grad_();
  const NonfiniteWatch watch;
  at::Tensor loss;
  {
    RECORD_USER_SCOPE(std::string("micro-batch 0"));
    const at::Tensor doubled = x * 2;
    at::Tensor root;
    {
      RECORD_USER_SCOPE(std::string("layer 3"));
      root = doubled.sqrt();
    }
    loss = (root * 5).sum();
    loss.backward();
  }
  ASSERT_TRUE(watch.origin());
  EXPECT_EQ(watch.origin()->pass, Pass::kBackward);
  EXPECT_THAT(watch.origin()->scopes, ElementsAre("micro-batch 0", "layer 3"));
  EXPECT_EQ(watch.origin()->infinite, 1);
  EXPECT_THAT(watch.origin()->first_index, ElementsAre(1));
}

TEST(NonfiniteWatch, passes_masks_and_unset_memory) {
  const NonfiniteWatch watch;
  const double infinity = std::numeric_limits<double>::infinity();
  at::Tensor unset = at::empty({64});
  std::fill_n(unset.mutable_data_ptr<float>(), 64, std::numeric_limits<float>::quiet_NaN());
  unset.view({8, 8}).select(0, 3);
  at::add_out(unset, at::ones({64}), at::ones({64}));
  const at::Tensor mask = at::zeros({2, 2}).masked_fill(at::ones({2, 2}, at::kBool).triu(1), -infinity);
  const at::Tensor shares = at::softmax(at::ones({2, 2}) + mask, -1);
  EXPECT_EQ(shares.sum().item<float>(), 2);
  EXPECT_FALSE(watch.origin());
}

TEST(NonfiniteWatch, finds_nan_that_comes_from_infinity) {
  const at::Tensor infinite = at::full({2}, std::numeric_limits<double>::infinity());
  const NonfiniteWatch watch;
  infinite - infinite;
  ASSERT_TRUE(watch.origin());
  EXPECT_EQ(watch.origin()->operation, "aten::sub");
}

TEST(NonfiniteWatch, keeps_the_largest_value_of_each_scope_and_pass) {
  const at::Tensor x = at::tensor({2.0, -3.0}).requires_grad_();
  const NonfiniteWatch watch;
  at::Tensor sum;
  {
    RECORD_USER_SCOPE(std::string("a"));
    sum = (x * x * 10).sum();
  }
  {
    RECORD_USER_SCOPE(std::string(kBackwardScope));
    sum.backward();
  }
  ASSERT_EQ(watch.largest().size(), 3U);
  EXPECT_EQ(watch.largest()[0].scope, "a");
  EXPECT_EQ(watch.largest()[0].pass, Pass::kForward);
  EXPECT_EQ(watch.largest()[0].operation, "aten::sum");
  EXPECT_THAT(watch.largest()[0].magnitude, DoubleEq(130));
  std::map<std::string, double> backward;
  for (const LargestValue& value : watch.largest())
    if (value.pass == Pass::kBackward) backward[value.scope] = value.magnitude;
  EXPECT_THAT(backward["a"], DoubleEq(30));                          // 10 x, for each factor
  EXPECT_THAT(backward[std::string(kBackwardScope)], DoubleEq(60));  // their sum
}

TEST(NonfiniteWatch, is_the_only_one_and_ends_with_its_scope) {
  {
    const NonfiniteWatch watch;
    EXPECT_THROW(NonfiniteWatch(), std::logic_error);
  }
  const NonfiniteWatch watch;
  EXPECT_FALSE(watch.origin());
}

}  // namespace
}  // namespace dtopp::train
