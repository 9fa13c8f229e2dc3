#include "dtopp/distributed/rendezvous.h"

#include <atomic>
#include <cerrno>
#include <fstream>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dtopp/base/errors.h"
#include "tests/distributed/rank_threads.h"

namespace {
std::atomic<int> connect_delay = 0;  // milliseconds
}

// Torch's store calls this function. With a delay, the connection is in progress when it returns, as on a
// busy machine.
extern "C" int connect(int socket, const sockaddr* address, socklen_t size) {
  const auto result = static_cast<int>(::syscall(SYS_connect, socket, address, size));
  if (connect_delay == 0) return result;
  std::this_thread::sleep_for(std::chrono::milliseconds(connect_delay));
  errno = EINPROGRESS;
  return -1;
}

namespace dtopp::distributed {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

StoreConnection serve() {
  return make_store(
      {.host = "127.0.0.1", .is_server = true, .loopback_only = true, .timeout = milliseconds(20000)});
}

StoreConnection connect(int64_t port, const std::string& prefix = "", int64_t timeout = 20000) {
  return make_store({.host = "127.0.0.1", .port = port, .prefix = prefix, .timeout = milliseconds(timeout)});
}

// The local addresses of the sockets that listen on the port, in the kernel's notation.
std::set<std::string> listening(int64_t port) {
  char suffix[8];
  std::snprintf(suffix, sizeof suffix, ":%04X", static_cast<unsigned>(port));
  std::set<std::string> found;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string number, local, remote, state, rest; file >> number >> local >> remote >> state;
         std::getline(file, rest))
      if (state == "0A" && local.ends_with(suffix)) found.insert(local);
  }
  return found;
}

TEST(Rendezvous, serves_on_a_free_port_of_loopback_alone) {
  const StoreConnection server = serve();
  char expected[16];
  std::snprintf(expected, sizeof expected, "0100007F:%04X", static_cast<unsigned>(server.port));
  EXPECT_EQ(listening(server.port), std::set<std::string>{expected});
  const StoreConnection client = connect(server.port);
  EXPECT_EQ(client.port, server.port);
  server.store->set("key", std::string("value"));
  EXPECT_EQ(client.store->get_to_str("key"), "value");
}

TEST(Rendezvous, serves_on_a_machine_that_is_too_busy_to_connect_at_once) {
  connect_delay = 2500;
  const StoreConnection server = serve();
  connect_delay = 0;
  server.store->set("key", std::string("value"));
  EXPECT_EQ(server.store->get_to_str("key"), "value");
}

TEST(Rendezvous, serves_other_hosts_where_asked) {
  const StoreConnection server = make_store({.host = "127.0.0.1", .is_server = true});
  const auto found = listening(server.port);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(*found.begin(), testing::MatchesRegex("0+:.*"));  // any address
}

TEST(Rendezvous, keeps_attempts_apart_by_their_prefix) {
  const StoreConnection agent = serve();
  const StoreConnection first = connect(agent.port, "/worker/attempt_0");
  const StoreConnection second = connect(agent.port, "/worker/attempt_1");
  first.store->set("key", std::string("old"));
  EXPECT_TRUE(connect(agent.port, "/worker/attempt_0").store->check({"key"}));
  EXPECT_FALSE(second.store->check({"key"}));
  EXPECT_EQ(agent.store->get_to_str("/worker/attempt_0/key"), "old");  // the key as torchrun stores it
}

TEST(Rendezvous, connects_ranks) {
  const StoreConnection server = serve();
  run_ranks(3, [&](int64_t rank, const auto&) {
    const auto store = rank == 0 ? server.store : connect(server.port).store;
    const auto group = make_gloo_collectives(store, "all", rank, all_ranks(3), on_loopback());
    const at::Tensor values = at::full({1}, rank, at::kDouble);
    group->all_reduce_sum(values, "sum").wait();
    EXPECT_EQ(values.item<double>(), 3);
  });
}

template <class ErrorType>
std::string message_of(const StoreOptions& options) {
  configure_transport();
  try {
    make_store(options);
  } catch (const ErrorType& error) {
    return error.what();
  }
  return "no error";
}

TEST(Rendezvous, names_host_port_and_timeout_when_no_server_comes) {
  const int64_t port = serve().port;  // the port is free again
  const std::string at_port = "127.0.0.1:" + std::to_string(port);
  EXPECT_THAT(message_of<ResourceError>({.host = "127.0.0.1", .port = port, .timeout = milliseconds(300)}),
              AllOf(HasSubstr(at_port), HasSubstr("within 300 ms"), Not(HasSubstr("\n"))));
}

TEST(Rendezvous, names_the_port_that_is_taken) {
  const StoreConnection first = serve();
  for (const bool loopback_only : {true, false}) {
    EXPECT_THAT(message_of<UsageError>({.host = "127.0.0.1",
                                        .port = first.port,
                                        .is_server = true,
                                        .loopback_only = loopback_only,
                                        .timeout = milliseconds(300)}),
                AllOf(HasSubstr("127.0.0.1:" + std::to_string(first.port)), Not(HasSubstr("\n"))));
  }
}

TEST(Rendezvous, refuses_a_host_or_a_port_that_cannot_be) {
  EXPECT_THAT(
      message_of<UsageError>({.host = "no-such-host.invalid", .port = 29500, .timeout = milliseconds(300)}),
      AllOf(HasSubstr("no-such-host.invalid:29500"), Not(HasSubstr("\n"))));
  EXPECT_THAT(message_of<UsageError>({.host = "127.0.0.1", .port = 70000}), HasSubstr("127.0.0.1:70000"));
  EXPECT_THAT(message_of<UsageError>({.host = "127.0.0.1", .port = 0}), HasSubstr("127.0.0.1:0"));
}

}  // namespace

}  // namespace dtopp::distributed
