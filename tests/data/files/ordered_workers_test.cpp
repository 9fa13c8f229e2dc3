#include "dtopp/data/files/ordered_workers.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtopp::data {
namespace {

struct Item {
  int number;
  uint64_t bytes;
  std::shared_ptr<void> alive;
};

// Produces items of the given sizes and keeps the largest number of items that existed at once.
struct Source {
  std::vector<uint64_t> sizes;
  std::shared_ptr<std::atomic<int>> alive = std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<std::atomic<int>> most = std::make_shared<std::atomic<int>>(0);
  size_t at = 0;

  std::optional<Item> next() {
    if (at == sizes.size()) return std::nullopt;
    *most = std::max<int>(*most, ++*alive);
    const auto count = alive;
    return Item{static_cast<int>(at), sizes[at++],
                std::shared_ptr<void>(nullptr, [count](void*) { --*count; })};
  }
};

Item unchanged(Item item, int /*worker*/) { return item; }

// Takes all items in order from two workers and returns the largest number of items that existed at once.
int most_items(const std::vector<uint64_t>& sizes) {
  Source source{sizes};
  const auto most = source.most;
  OrderedWorkers<Source, decltype(&unchanged)> workers(std::move(source), &unchanged, 2);
  for (int number = 0; const auto item = workers.next(); ++number) {
    EXPECT_EQ(item->number, number);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the workers get ahead
  }
  return *most;
}

TEST(OrderedWorkers, bound_the_number_of_items) { EXPECT_LE(most_items(std::vector<uint64_t>(30, 1)), 8); }

// 3 * 32 MiB lie between producer and caller; the producer and the caller hold an item each.
TEST(OrderedWorkers, bound_the_bytes_of_items) {
  EXPECT_LE(most_items(std::vector<uint64_t>(20, kMaxBytesPerWorker)), 3 + 2);
  EXPECT_LE(most_items(std::vector<uint64_t>(20, 3 * kMaxBytesPerWorker)), 1 + 2);
}

TEST(OrderedWorkers, an_item_beyond_the_limit_is_alone) {
  EXPECT_LE(most_items({uint64_t{1} << 40, uint64_t{1} << 40, 1, uint64_t{1} << 40}), 1 + 2);
}

}  // namespace
}  // namespace dtopp::data
