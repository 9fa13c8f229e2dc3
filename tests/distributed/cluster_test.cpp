#include "dtopp/distributed/cluster.h"

#include <atomic>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/stop.h"
#include "tests/distributed/rank_threads.h"

namespace dtopp::distributed {
namespace {

using Routes = std::vector<std::optional<Route>>;

TEST(RouteTo, finds_the_address_that_the_other_host_sees) {
  EXPECT_EQ(route_to("127.0.0.1"), (Route{"127.0.0.1", "127.0.0.1"}));
  EXPECT_EQ(route_to("127.0.1.1")->remote, "127.0.1.1");
}

TEST(OwnAddress, is_where_a_rank_sends_from) {
  const Routes routes = {Route{"10.0.0.1", "10.0.0.1"}, Route{"10.0.0.2", "10.0.0.1"}};
  EXPECT_EQ(own_address(routes, 0), "10.0.0.1");
  EXPECT_EQ(own_address(routes, 1), "10.0.0.2");
}

TEST(OwnAddress, of_a_host_that_knows_itself_by_loopback_alone_is_what_others_know) {
  const Route inside = {"127.0.0.1", "127.0.1.1"};
  const Routes routes = {inside, inside, Route{"10.0.0.2", "10.0.0.1"}};
  EXPECT_EQ(own_address(routes, 0), "10.0.0.1");
  EXPECT_EQ(own_address(routes, 1), "10.0.0.1");
}

TEST(OwnAddress, is_on_loopback_where_all_ranks_are) {
  const Route inside = {"127.0.0.1", "127.0.1.1"};
  EXPECT_EQ(own_address({inside, inside}, 1), "127.0.0.1");
}

TEST(OwnAddress, is_unknown_without_a_route) {
  EXPECT_EQ(own_address({std::nullopt, Route{"10.0.0.2", "10.0.0.1"}}, 0), "");
}

using ::testing::HasSubstr;

RankRecord record_of(int64_t rank) {
  RankRecord record{.host = "node" + std::to_string(rank / 2), .version = "1"};
  if (rank != 1) record.route = Route{"10.0.0." + std::to_string(rank), "10.0.0.0"};
  return record;
}

// Counts requests.
class CountingStore final : public c10d::HashStore {
 public:
  std::vector<uint8_t> get(const std::string& key) override {
    ++requests;
    return HashStore::get(key);
  }
  std::atomic<int64_t> requests = 0;
};

TEST(ExchangeRecords, gives_every_rank_all_records_in_two_reads_per_rank) {
  constexpr int64_t kRanks = 6;
  const auto store = c10::make_intrusive<CountingStore>();
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto records = exchange_records(*store, rank, kRanks, record_of(rank));
      ASSERT_EQ(records.size(), kRanks);
      for (int64_t other = 0; other < kRanks; ++other) {
        const RankRecord expected = record_of(other);
        EXPECT_EQ(records[static_cast<size_t>(other)].host, expected.host);
        EXPECT_EQ(records[static_cast<size_t>(other)].route, expected.route);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(store->requests, 2 * kRanks);
}

TEST(ExchangeRecords, names_the_missing_rank_on_all_ranks) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(std::chrono::milliseconds(200));
  std::vector<std::string> errors(2);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        exchange_records(*store, rank, 3, record_of(rank));
      } catch (const ResourceError& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(errors, ::testing::Each(HasSubstr("no answer from rank 2 within")));
}

TEST(ExchangeRecords, ends_at_a_stop_while_other_ranks_are_missing) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const std::atomic<bool> requested = true;
  const StopScope scope{StopToken(requested)};
  for (const int64_t rank : {0, 1}) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THROW(exchange_records(*store, rank, 3, record_of(rank)), StoppedEarly);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  }
}

TEST(RankRecord, is_read_with_checks) {
  for (const char* text : {"", "[]", "{\"host\": 3, \"version\": \"1\"}", "{\"host\": \"a\"}"})
    EXPECT_THROW(RankRecord::from_json(text), DataError) << text;
}

TEST(CountNodes, needs_equal_runs_of_ranks_per_host) {
  const auto on = [](const std::vector<std::string>& hosts) {
    std::vector<RankRecord> ranks;
    for (const std::string& host : hosts) ranks.push_back({.host = host});
    return ranks;
  };
  EXPECT_EQ(count_nodes(on({"a", "a", "b", "b"}), 2), 2);
  EXPECT_EQ(count_nodes(on({"a", "b", "a", "b"}), 2), 1);
  EXPECT_EQ(count_nodes(on({"a", "a", "b"}), 2), 1);
  EXPECT_EQ(count_nodes(on({"a", "a"}), 1), 2);
}

TEST(CheckVersions, names_the_first_rank_with_another_program) {
  std::vector<RankRecord> ranks = {{.host = "a", .version = "1"}, {.host = "b", .version = "2"}};
  try {
    check_versions(ranks);
    FAIL();
  } catch (const RanksDiffer& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 runs another dtopp than rank 0 (2, rank 0 1)"));
  }
  ranks[1].version = "1";
  EXPECT_NO_THROW(check_versions(ranks));
}

}  // namespace

}  // namespace dtopp::distributed
