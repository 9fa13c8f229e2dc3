#include "dtopp/device/available_memory.h"

#include <limits>

#include <gtest/gtest.h>

#include "tests/config/temporary_files.h"

namespace dtopp::device {
namespace {

class AvailableMemory : public config::TemporaryFiles {};

TEST_F(AvailableMemory, is_the_least_of_machine_and_control_groups) {
  EXPECT_EQ(available_memory(root_), std::numeric_limits<uint64_t>::max());
  write("proc/meminfo", "MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable:      5000 kB\n");
  EXPECT_EQ(available_memory(root_), 5000U * 1024);
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  write("sys/fs/cgroup/a/b/memory.current", "100\n");
  EXPECT_EQ(available_memory(root_), 5000U * 1024);
  write("sys/fs/cgroup/a/memory.max", "1000000\n");
  write("sys/fs/cgroup/a/memory.current", "700000\n");
  EXPECT_EQ(available_memory(root_), 300000U);
  write("sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 150000\n");
  EXPECT_EQ(available_memory(root_), 450000U);
  write("sys/fs/cgroup/memory.max", "1000\n");  // as the container itself sees it
  write("sys/fs/cgroup/memory.current", "2000\n");
  EXPECT_EQ(available_memory(root_), 0U);
}

TEST_F(AvailableMemory, reads_version_1_groups) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/gone\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9000\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "4000\n");
  write("sys/fs/cgroup/memory/memory.stat", "total_inactive_file 1000\n");
  EXPECT_EQ(available_memory(root_), 6000U);
}

}  // namespace
}  // namespace dtopp::device
