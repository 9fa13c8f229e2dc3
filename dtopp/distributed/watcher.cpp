#include "dtopp/distributed/watcher.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <ctime>
#include <functional>
#include <mutex>
#include <random>
#include <sstream>
#include <stdexcept>
#include <thread>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/distributed/collectives.h"

namespace dtopp::distributed {
namespace {

constexpr char kAddressKey[] = "watcher";                      // "PORT SECRET"
constexpr auto kAcceptAgain = std::chrono::milliseconds(100);  // after a failure, such as too many open files

// A secret that only ranks receive: another process that finds the port cannot join.
std::string random_word() {
  std::random_device random;
  return std::to_string(random()) + "-" + std::to_string(random());
}

}  // namespace

RankConnections::RankConnections(c10d::Store& store, int64_t rank, int64_t size, const std::string& address,
                                 bool loopback_only)
    : size_(size) {
  uint16_t port = 0;
  if (rank == 0) {
    secret_ = random_word();
    listening_ = listening_socket(port, loopback_only);
    store.set(kAddressKey, std::to_string(port) + " " + secret_);
  } else {
    std::istringstream words(store.get_to_str(kAddressKey));
    if (!(words >> port >> secret_)) throw std::runtime_error("the store's entry for the watcher is damaged");
    connections_.push_back({LineSocket::connect(address, port), 0});
    connections_.front().socket.send(secret_ + " " + std::to_string(rank));
  }
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) throw std::runtime_error("no file descriptor is left");
}

RankConnections::~RankConnections() {
  if (listening_ >= 0) ::close(listening_);
  ::close(wake_);
}

std::vector<RankConnections::Event> RankConnections::wait(std::chrono::milliseconds patience) {
  const bool accepts = std::chrono::steady_clock::now() >= accept_after_;
  if (!accepts) patience = std::min(patience, kAcceptAgain);
  std::vector<pollfd> ready = {{wake_, POLLIN, 0}, {accepts ? listening_ : -1, POLLIN, 0}};
  for (const Connection& connection : connections_)
    ready.push_back({connection.ended ? -1 : connection.socket.descriptor(), POLLIN, 0});
  ::poll(ready.data(), ready.size(), static_cast<int>(patience.count()));
  uint64_t count = 0;
  (void)!::read(wake_, &count, sizeof count);
  if ((ready[1].revents & POLLIN) != 0) accept();
  std::vector<Event> events;
  for (Connection& connection : connections_) {
    if (connection.ended) continue;
    for (std::string& line : connection.socket.receive()) {
      if (connection.rank >= 0)
        events.push_back({connection.rank, std::move(line)});
      else
        admit(connection, line);
    }
    connection.ended = connection.socket.has_ended();
    if (connection.ended && connection.rank >= 0) events.push_back({connection.rank, std::nullopt});
  }
  const auto is_stranger = [](const Connection& connection) { return connection.rank < 0; };
  const auto joined = std::count_if(connections_.begin(), connections_.end(), std::not_fn(is_stranger));
  const bool complete = joined == size_ - 1;
  connections_.remove_if([&](const Connection& connection) {
    return is_stranger(connection) && (complete || connection.ended);
  });
  if (complete && listening_ >= 0) {
    ::close(listening_);
    listening_ = -1;
  }
  return events;
}

void RankConnections::accept() {
  const int connected = retry([&] { return ::accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC); });
  if (connected >= 0)
    connections_.push_back({LineSocket(connected), -1});
  else
    accept_after_ = std::chrono::steady_clock::now() + kAcceptAgain;
}

void RankConnections::admit(Connection& connection, const std::string& line) const {
  std::istringstream words(line);
  std::string secret;
  int64_t rank = -1;
  if (words >> secret >> rank && secret == secret_ && rank > 0 && rank < size_) connection.rank = rank;
}

void RankConnections::wake() {
  const uint64_t one = 1;
  (void)!::write(wake_, &one, sizeof one);
}

void RankConnections::send(const std::string& line) {
  for (Connection& connection : connections_) {
    if (connection.rank >= 0) connection.socket.send(line);
  }
}

void RankConnections::offer(const std::string& line) {
  for (Connection& connection : connections_) {
    if (connection.rank >= 0 && connection.socket.is_idle()) connection.socket.send(line);
  }
}

void RankConnections::finish() {
  for (Connection& connection : connections_) connection.socket.finish();
}

void RankConnections::finish(int64_t rank) {
  for (Connection& connection : connections_) {
    if (connection.rank == rank) connection.socket.finish();
  }
}

bool RankConnections::any_open(int64_t except) const {
  return std::any_of(connections_.begin(), connections_.end(), [&](const Connection& connection) {
    return !connection.ended && connection.rank != except;
  });
}

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// The longest delay of on_loss, and the longest wait for the delivery of the last message.
constexpr milliseconds kHold{1000}, kLastMessage{1000};

double seconds_of(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Rank 0 watches all ranks; the other ranks watch rank 0 only.
std::vector<std::string> watched_hosts(const WatcherOptions& options) {
  std::vector<std::string> hosts = options.hosts;
  if (options.rank != 0) std::fill(hosts.begin() + 1, hosts.end(), "");
  return hosts;
}

// Splits "word rest of the line".
std::pair<std::string, std::string> cut_word(const std::string& line) {
  const size_t space = line.find(' ');
  if (space == std::string::npos) return {line, ""};
  return {line.substr(0, space), line.substr(space + 1)};
}

std::string without_breaks(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
  return text;
}

}  // namespace

double WatchedProcess::cpu_seconds() {
  return seconds_of(CLOCK_PROCESS_CPUTIME_ID) - seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

// Lines to rank 0: "at STATE", "left", "failed STATUS MESSAGE". Lines from rank 0: "at STATE", "left", "lost
// TEXT".
struct Watcher::Impl {
  Impl(const c10::intrusive_ptr<c10d::Store>& store, WatcherOptions wanted,
       std::shared_ptr<const CollectiveCounts> counted, WatchedProcess& watched);

  bool is_first() const { return options.rank == 0; }
  void run();
  void handle(const RankConnections::Event& event);
  // A line that this rank cannot read: it comes from another program or was damaged.
  void lose_sender(int64_t rank, const std::string& line);
  void lose(const LostRank& rank);
  RankState own_state();
  void check_device(const RankState& state);
  // Whether the thread ends: the run is over, this rank ends, or on_loss was called.
  bool finish();
  void send_last_message(const std::string& line);
  void end(const std::string& line);

  WatcherOptions options;
  std::shared_ptr<const CollectiveCounts> counts;
  WatchedProcess& process;
  milliseconds interval;

  // Used by the watcher thread only.
  RankConnections connections;
  RankRecords records;
  bool is_over = false;  // rank 0 has left
  std::optional<LostRank> lost;
  Clock::time_point lost_at;

  std::mutex mutex;
  std::condition_variable changed;
  int64_t step = 0;
  std::string activity = "start";
  std::atomic<bool> new_activity = false;  // not sent yet
  std::string last_message;                // of this rank; empty until it ends
  bool has_detected_loss = false;          // this rank has detected the loss of another one
  bool called = false;                     // whether on_loss was called
  std::thread thread;
};

Watcher::Impl::Impl(const c10::intrusive_ptr<c10d::Store>& store, WatcherOptions wanted,
                    std::shared_ptr<const CollectiveCounts> counted, WatchedProcess& watched)
    : options(std::move(wanted)),
      counts(std::move(counted)),
      process(watched),
      interval(std::clamp(milliseconds(static_cast<int64_t>(1000 * options.limits.silent / 60)),
                          milliseconds(20), milliseconds(500))),
      connections(*store, options.rank, static_cast<int64_t>(options.hosts.size()), options.address,
                  options.loopback_only),
      records(watched_hosts(options), options.limits) {
  thread = std::thread([this] { run(); });
}

void Watcher::Impl::run() {
  Clock::time_point last = Clock::now(), sent{};
  do {
    for (const RankConnections::Event& event : connections.wait(interval)) handle(event);
    const Clock::time_point now = Clock::now();
    if (now - sent >= interval || new_activity.exchange(false)) {
      const RankState state = own_state();
      records.received(options.rank, state);
      check_device(state);
      connections.offer("at " + state.to_line());
      sent = now;
    }
    const auto passed = std::min<Clock::duration>(now - last, 4 * interval);
    last = now;
    if (const auto silent = records.pass(std::chrono::duration<double>(passed).count())) lose(*silent);
  } while (!finish());
}

void Watcher::Impl::check_device(const RankState& state) {
  const std::string cause = process.device_failure();
  if (cause.empty()) return;
  const std::string& host = options.hosts[static_cast<size_t>(options.rank)];
  lose({.rank = options.rank, .location = "on " + host + " " + state.location(), .cause = cause});
}

void Watcher::Impl::handle(const RankConnections::Event& event) {
  const int64_t rank = event.from;
  if (!event.line) {
    if (!records.has_left(rank)) lose(records.died(rank));
    return connections.finish(rank);
  }
  const auto [word, rest] = cut_word(*event.line);
  if (word == "at") {
    const auto state = RankState::from_line(rest);
    if (!state) return lose_sender(rank, *event.line);
    records.received(rank, *state);
  } else if (word == "failed") {
    const auto [status, message] = cut_word(rest);
    const auto number = whole_number(status);
    if (!number) return lose_sender(rank, *event.line);
    lose(records.failed(rank, *number, message));
    records.left(rank);
  } else if (word == "left" || word == "lost") {
    records.left(rank);
    if (is_first()) return;
    if (word == "left")
      is_over = true;
    else if (const auto received = LostRank::from_text(rest))
      lose(*received);
    else
      return lose_sender(rank, *event.line);
    connections.finish(rank);  // rank 0 waits for this before it ends
  } else {
    lose_sender(rank, *event.line);
  }
}

void Watcher::Impl::lose_sender(int64_t rank, const std::string& line) {
  constexpr size_t kShown = 60;
  lose(records.lost(rank, "sent a line that is no message of a watcher: \"" + line.substr(0, kShown) +
                              "\"; start the same program on all hosts"));
}

void Watcher::Impl::lose(const LostRank& rank) {
  if (lost) return;
  lost = rank;
  lost_at = Clock::now();
  if (is_first()) connections.send("lost " + lost->to_text());
}

RankState Watcher::Impl::own_state() {
  const CollectiveCounts::Current current = counts->current();
  const std::lock_guard lock(mutex);
  RankState state{.step = step, .activity = activity, .ordinal = current.ordinal, .waiting = current.waiting};
  if (current.ordinal > 0) state.collective = current.what;
  state.cpu_seconds = process.cpu_seconds();
  return state;
}

bool Watcher::Impl::finish() {
  std::string line;
  {
    const std::lock_guard lock(mutex);
    line = last_message;
    const bool held = lost && lost->status != 0 && !has_detected_loss && Clock::now() - lost_at < kHold;
    if (line.empty() && (!lost || held)) return is_over && !lost;
  }
  if (is_first() || !line.empty()) send_last_message(line);
  if (!line.empty()) return true;
  process.on_loss(*lost);
  const std::lock_guard lock(mutex);
  called = true;
  changed.notify_all();
  return true;
}

// Returns when every connected rank has received the last message: each then ends its own direction.
void Watcher::Impl::send_last_message(const std::string& line) {
  if (is_first() && line.starts_with("failed")) {
    const auto [status, message] = cut_word(cut_word(line).second);
    lose(records.failed(0, whole_number(status).value(), message));  // written by fail()
  }
  if (!is_first() || !lost) connections.send(line);
  connections.finish();
  const Clock::time_point until = Clock::now() + kLastMessage;
  while (Clock::now() < until && connections.any_open(lost ? lost->rank : -1)) connections.wait(interval);
}

void Watcher::Impl::end(const std::string& line) {
  {
    const std::lock_guard lock(mutex);
    if (last_message.empty()) last_message = line;
  }
  connections.wake();
  if (thread.joinable()) thread.join();
}

Watcher::Watcher(const c10::intrusive_ptr<c10d::Store>& store, WatcherOptions options,
                 std::shared_ptr<const CollectiveCounts> counts, WatchedProcess& process) try
    : impl_(std::make_unique<Impl>(store, std::move(options), std::move(counts), process)) {
} catch (const std::exception& error) {
  throw ResourceError("cannot reach the other ranks: ", reason_of(error));
}

Watcher::~Watcher() { leave(); }

void Watcher::begin(int64_t step, const std::string& activity) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->step = step;
    if (activity == impl_->activity) return;
    impl_->activity = activity;
  }
  impl_->new_activity = true;
  impl_->connections.wake();
}

void Watcher::leave() { impl_->end("left"); }

void Watcher::fail(int status, const std::string& message) {
  impl_->end("failed " + std::to_string(status) + " " + without_breaks(message));
}

bool Watcher::await_loss(milliseconds patience) {
  std::unique_lock lock(impl_->mutex);
  impl_->has_detected_loss = true;
  impl_->connections.wake();
  return impl_->changed.wait_for(lock, patience, [&] { return impl_->called; });
}

}  // namespace dtopp::distributed
