// Seeds torch's random numbers before each test, so that a failure repeats.
#include <gtest/gtest.h>

#include <ATen/Context.h>

namespace dtopp {
namespace {

class SeedEachTest final : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& /*test*/) override { at::manual_seed(1); }
};

[[maybe_unused]] const bool is_added = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new SeedEachTest);  // gtest owns it
  return true;
}();

}  // namespace
}  // namespace dtopp
