#include "dtopp/distributed/membership/watcher.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <thread>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"
#include "dtopp/distributed/collectives/transport_error.h"
#include "dtopp/distributed/membership/rank_connections.h"

namespace dtopp::distributed {
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
  throw ResourceError("cannot reach the other ranks: " + reason_of(error));
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
