#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/distributed/collectives.h"
#include "tests/distributed/rank_threads.h"

namespace dtopp::distributed {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Each rank's error message; "" if the rank continues.
std::vector<std::string> errors_of(const std::vector<std::string>& devices) {
  std::vector<std::string> texts(devices.size());
  run_group(static_cast<int64_t>(devices.size()), [&](Collectives& ranks) {
    const auto rank = static_cast<size_t>(ranks.rank());
    try {
      check_devices(devices[rank], ranks);
    } catch (const RanksDiffer& error) {
      EXPECT_EQ(error.status(), ExitStatus::kUsage);
      texts[rank] = error.what();
    }
  });
  return texts;
}

TEST(CheckDevices, lets_ranks_on_cpus_or_on_a_device_each_go_on) {
  EXPECT_THAT(errors_of({"cpu", "cpu", "cpu"}), testing::Each(""));
  EXPECT_THAT(errors_of({"GPU-1", "GPU-2", "GPU-3"}), testing::Each(""));
}

TEST(CheckDevices, tells_all_ranks_which_do_not_go_together) {
  EXPECT_THAT(errors_of({"GPU-1", "GPU-2", "cpu"}),
              testing::Each(AllOf(HasSubstr("rank 2 computes on cpu"), HasSubstr("rank 0 on GPU-1"))));
  EXPECT_THAT(errors_of({"GPU-1", "GPU-2", "GPU-2"}),
              testing::Each(AllOf(HasSubstr("ranks 1 and 2"), HasSubstr("same device, GPU-2"))));
}

}  // namespace

}  // namespace dtopp::distributed
