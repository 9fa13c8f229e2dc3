#include "dtopp/distributed/process_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/device/device.h"
#include "tests/distributed/rank_threads.h"

namespace dtopp::distributed {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// One side of a group. It records the collectives that it is to start.
class NotingCollectives final : public Collectives {
 public:
  NotingCollectives() : Collectives(0, 2) {}
  Pending start(const Collective& collective) override {
    started.emplace_back(collective.what);
    return {};
  }
  std::vector<std::string> started;
};

// Tensors on the meta device stand for GPU tensors.
TEST(DeviceGroups, send_a_tensor_by_where_it_lies) {
  const auto host = std::make_shared<NotingCollectives>(), device = std::make_shared<NotingCollectives>();
  const auto group = host_and_device(host, device);
  EXPECT_EQ(group->size(), 2);
  for (const at::Device& side : {at::Device(at::kCPU), at::Device(at::kMeta)}) {
    const auto numbers = at::device(side).dtype(at::kDouble);
    const at::Tensor two = at::empty({2}, numbers), one = at::empty({1}, numbers);
    group->all_to_all(two, two, {}, "exchange").wait();
    group->all_gather(two, one, "gather").wait();
    group->all_reduce_sum(two, "sum").wait();
    group->broadcast(two, 0, "broadcast").wait();
  }
  group->barrier("barrier").wait();
  EXPECT_THAT(device->started, ElementsAre("exchange", "gather", "sum", "broadcast"));
  EXPECT_THAT(host->started, ElementsAre("exchange", "gather", "sum", "broadcast", "barrier"));
  EXPECT_THROW(group->all_gather(at::empty({2}), at::empty({1}, at::kMeta), "mixed"), c10::Error);
}

// An operator of libdtopp_cuda.so creates the groups.
TEST(DeviceGroups, say_in_one_line_why_they_cannot_be_connected) {
  const auto missing = device::find_cuda();
  if (!missing || missing->find("no CUDA device") == std::string::npos)
    GTEST_SKIP() << (missing ? *missing : "a CUDA device is here");
  run_ranks(2, [](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
    ProcessGroups groups = make_process_groups(store, rank, ep_by_edp(1, 2), on_loopback());
    try {
      const DeviceGroups device_groups(groups, store, at::Device(at::kCUDA, 0), std::chrono::seconds(20),
                                       nullptr);
      ADD_FAILURE() << "connected without a device";
    } catch (const ResourceError& error) {
      const std::string text = error.what();
      EXPECT_THAT(text, HasSubstr("rank " + std::to_string(rank) + ", group world of devices: NCCL"));
      EXPECT_THAT(text, HasSubstr("no GPUs found"));
      EXPECT_THAT(text, Not(HasSubstr("\n")));
    }
    EXPECT_TRUE(groups.device.is_cpu());
    EXPECT_FALSE(groups.world == nullptr);
    groups.world->barrier("as before").wait();
  });
}

}  // namespace

}  // namespace dtopp::distributed
