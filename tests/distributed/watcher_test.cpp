#include "dtopp/distributed/watcher.h"

#include <atomic>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "dtopp/distributed/rendezvous.h"
#include "tests/base/spent_files.h"
#include "tests/distributed/rank_threads.h"
#include "tests/distributed/silent_collectives.h"

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

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Ranks that are threads of one process share its processor time, so each reports that it uses none.
struct WatchedRank final : WatchedProcess {
  std::shared_ptr<CollectiveCounts> counts = std::make_shared<CollectiveCounts>();
  std::atomic<double> used_seconds = 0;
  std::atomic<bool> has_broken_device = false;
  std::mutex mutex;
  std::string lost;  // the message that names the lost rank
  Watcher watcher;

  WatchedRank(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t size, double limit = 0.3)
      : watcher(store,
                {.rank = rank,
                 .hosts = hosts(size),
                 .address = "127.0.0.1",
                 .loopback_only = true,
                 .limits = {.silent = limit, .absent = 20}},
                counts, *this) {}
  void on_loss(const LostRank& rank_lost) override {
    const std::lock_guard lock(mutex);
    lost = rank_lost.line();
  }
  std::string device_failure() override { return has_broken_device ? "group all: timed out" : ""; }
  double cpu_seconds() override { return used_seconds; }
  static std::vector<std::string> hosts(int64_t size) {
    std::vector<std::string> names;
    for (int64_t rank = 0; rank < size; ++rank) names.push_back("node" + std::to_string(rank));
    return names;
  }
  // Returns the message once there is one, or an empty string after `patience`.
  std::string wait(milliseconds patience = milliseconds(10000)) {
    const auto until = std::chrono::steady_clock::now() + patience;
    while (true) {
      {
        const std::lock_guard lock(mutex);
        if (!lost.empty() || std::chrono::steady_clock::now() >= until) return lost;
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
};

// A rank in its own process, because it receives signals. It ends when another rank is lost.
class RankProcess {
 public:
  RankProcess(int64_t port, int64_t rank, int64_t size, double limit) : process_(::fork()) {
    if (process_ != 0) return;
    const auto store = make_store({.host = "127.0.0.1", .port = port});
    WatchedRank other(store.store, rank, size, limit);
    other.watcher.begin(12, "step");
    other.wait(std::chrono::hours(1));
    ::_exit(5);
  }
  ~RankProcess() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  void send(int signal) const { ::kill(process_, signal); }
  bool is_there() const { return ::waitpid(process_, nullptr, WNOHANG) == 0; }

 private:
  pid_t process_;
};

class LostRankTest : public ::testing::Test {
 protected:
  StoreConnection server_ = make_store(
      {.host = "127.0.0.1", .is_server = true, .loopback_only = true, .timeout = milliseconds(20000)});
};

TEST_F(LostRankTest, that_was_killed_is_named_long_before_the_limit) {
  RankProcess victim(server_.port, 1, 3, 60);
  WatchedRank first(server_.store, 0, 3, 60), other(server_.store, 2, 3, 60);
  std::this_thread::sleep_for(milliseconds(1200));  // the victim reports twice
  victim.send(SIGKILL);
  const auto begin = std::chrono::steady_clock::now();
  const std::string line = "rank 1 on node1 at step 12: its process was killed, or its host is gone";
  EXPECT_EQ(first.wait(), line);
  EXPECT_EQ(other.wait(), line);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(5000));
}

TEST_F(LostRankTest, that_was_stopped_is_named_after_the_limit) {
  RankProcess victim(server_.port, 1, 3, 0.5);
  WatchedRank first(server_.store, 0, 3, 0.5), other(server_.store, 2, 3, 0.5);
  std::this_thread::sleep_for(milliseconds(300));
  victim.send(SIGSTOP);
  EXPECT_THAT(first.wait(), StartsWith("rank 1 on node1 at step 12: silent for 0.5 s"));
  EXPECT_THAT(other.wait(), StartsWith("rank 1 on node1 at step 12: silent for 0.5 s"));
}

TEST_F(LostRankTest, may_be_rank_0_which_serves_the_others) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    const auto store = make_store({.host = "127.0.0.1", .is_server = true, .loopback_only = true});
    RankProcess victim(store.port, 0, 3, 0.5);
    WatchedRank one(store.store, 1, 3, 0.5), two(store.store, 2, 3, 0.5);
    std::this_thread::sleep_for(milliseconds(300));
    victim.send(signal);
    EXPECT_THAT(one.wait(), StartsWith("rank 0 on node0 at step 12: "));
    EXPECT_THAT(two.wait(), StartsWith("rank 0 on node0 at step 12: "));
  }
}

TEST(Watcher, lets_ranks_leave_one_after_another_without_a_word) {
  run_ranks(4, [&](int64_t rank, const auto& store) {
    WatchedRank self(store, rank, 4);
    std::this_thread::sleep_for(milliseconds(150 * ((rank + 2) % 4)));  // rank 0 comes in the middle
    self.watcher.leave();
    EXPECT_EQ(self.wait(milliseconds(0)), "");
  });
}

TEST(Watcher, tells_of_a_ranks_own_error) {
  for (const int64_t failing : {0, 2}) {
    run_ranks(3, [&](int64_t rank, const auto& store) {
      WatchedRank self(store, rank, 3, 20);
      self.watcher.begin(4, "step");
      std::this_thread::sleep_for(milliseconds(700));
      if (rank == failing) return self.watcher.fail(3, "train.npy: byte 12:\nis not there");
      EXPECT_EQ(self.wait(), "rank " + std::to_string(failing) + " on node" + std::to_string(failing) +
                                 " at step 4: ended with status 3: train.npy: byte 12: is not there");
    });
  }
}

TEST(Watcher, gives_a_rank_time_to_end_by_an_error_of_its_own_too) {
  run_ranks(2, [&](int64_t rank, const auto& store) {
    WatchedRank self(store, rank, 2, 20);
    if (rank == 1) return self.watcher.fail(2, "refused");
    std::this_thread::sleep_for(milliseconds(300));
    self.watcher.fail(2, "refused");
    EXPECT_EQ(self.wait(milliseconds(0)), "");
  });
}

TEST(Watcher, speaks_at_once_to_a_rank_that_has_noticed_the_loss) {
  run_ranks(2, [&](int64_t rank, const auto& store) {
    WatchedRank self(store, rank, 2, 20);
    if (rank == 1) return self.watcher.fail(3, "damaged");
    EXPECT_TRUE(self.watcher.await_loss(milliseconds(10000)));
    EXPECT_THAT(self.wait(milliseconds(0)), HasSubstr("damaged"));
  });
}

TEST(Watcher, finds_the_rank_that_does_not_come_to_a_collective) {
  run_ranks(3, [&](int64_t rank, const auto& store) {
    WatchedRank self(store, rank, 3);
    self.watcher.begin(5, "step");
    CountingCollectives group(std::make_unique<SilentCollectives>(rank, 3), self.counts);
    group.barrier("first").wait();
    if (rank != 1) self.counts->waiting("second", self.counts->started("second", 0));
    EXPECT_EQ(self.wait(),
              "rank 1 on node1 at step 5, after first: stuck for 0.3 s, while others wait in second");
  });
}

TEST(Watcher, waits_for_a_rank_that_computes) {
  run_ranks(2, [&](int64_t rank, const auto& store) {
    WatchedRank self(store, rank, 2);
    self.watcher.begin(5, "step");
    if (rank == 0) self.counts->waiting("second", self.counts->started("second", 0));
    for (int i = 0; i < 100; ++i) {
      std::this_thread::sleep_for(milliseconds(10));
      if (rank == 1) self.used_seconds = 0.01 * i;
    }
    EXPECT_EQ(self.wait(milliseconds(0)), "");
    if (rank == 1) std::this_thread::sleep_for(milliseconds(50));  // rank 0 looks first
    self.watcher.leave();
  });
}

// The host does not wait for its device, so the rank itself finds nothing.
TEST_F(LostRankTest, may_be_the_own_one_whose_device_never_finishes) {
  for (const int64_t failing : {0, 1}) {
    run_ranks(2, [&](int64_t rank, const auto& store) {
      WatchedRank self(store, rank, 2, 60);
      self.watcher.begin(7, "step");
      EXPECT_EQ(self.wait(milliseconds(100)), "");
      self.has_broken_device = rank == failing;
      const std::string lost = self.wait();
      const std::string location = "rank " + std::to_string(failing) + " on node" + std::to_string(failing);
      EXPECT_THAT(lost, StartsWith(location + " at step 7"));
      EXPECT_TRUE(rank != failing || lost == location + " at step 7: group all: timed out") << lost;
    });
  }
}

// A scheduler suspends the whole job: rank 1's last report is old when rank 0 resumes.
TEST_F(LostRankTest, is_none_where_all_ranks_were_stopped_for_a_while) {
  RankProcess first(server_.port, 0, 2, 0.5), second(server_.port, 1, 2, 0.5);
  std::this_thread::sleep_for(milliseconds(300));
  for (const auto* rank : {&first, &second}) rank->send(SIGSTOP);
  std::this_thread::sleep_for(milliseconds(1500));
  for (const auto* rank : {&first, &second}) rank->send(SIGCONT);
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_TRUE(first.is_there() && second.is_there());
}

// Connects to rank 0 as rank 1 of 2 and sends a line.
TEST(Watcher, loses_a_rank_whose_lines_it_cannot_read) {
  for (const char* line :
       {"failed x damaged", "failed 99999999999999999999 damaged", "at nonsense", "hello"}) {
    configure_transport();
    const auto store = c10::make_intrusive<c10d::HashStore>();
    WatchedRank first(store, 0, 2, 20);
    std::istringstream address(store->get_to_str("watcher"));
    uint16_t port = 0;
    std::string secret;
    address >> port >> secret;
    LineSocket other(connected_socket("127.0.0.1", port));
    other.send(secret + " 1");
    other.send(line);
    EXPECT_EQ(first.wait(),
              "rank 1 on node1 before its first step: sent a line that is no message of a watcher: \"" +
                  std::string(line) + "\"; start the same program on all hosts");
  }
}

TEST(Watcher, cannot_join_where_nobody_listens) {
  configure_transport();
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  store->set("watcher", std::string("1 secret"));
  try {
    const WatchedRank self(store, 1, 2);
    FAIL() << "joined";
  } catch (const ResourceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot reach the other ranks: Connection refused"));
  }
}

}  // namespace

}  // namespace dtopp::distributed
