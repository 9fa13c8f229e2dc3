#include "dtopp/distributed/membership/rank_connections.h"

#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tests/base/spent_files.h"

namespace dtopp::distributed {
namespace {

using std::chrono::milliseconds;

TEST(RankConnections, waits_without_work_while_no_file_can_be_opened) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  RankConnections main(*store, 0, 2, "127.0.0.1", /*loopback_only=*/true);
  RankConnections other(*store, 1, 2, "127.0.0.1", /*loopback_only=*/true);
  int waits = 0;
  {
    const SpentFiles spent;
    const auto end = std::chrono::steady_clock::now() + milliseconds(500);
    for (; std::chrono::steady_clock::now() < end; ++waits) main.wait(milliseconds(200));
  }
  EXPECT_LT(waits, 20);
  // The rank joins later.
  other.send("hello");
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::vector<RankConnections::Event> events;
  while (events.empty() && std::chrono::steady_clock::now() < end) events = main.wait(milliseconds(200));
  ASSERT_EQ(events.size(), 1);
  EXPECT_EQ(events[0].line, "hello");
}

}  // namespace
}  // namespace dtopp::distributed
