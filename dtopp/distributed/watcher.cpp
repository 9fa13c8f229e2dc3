#include "dtopp/distributed/watcher.h"

#include <ctime>
#include <functional>
#include <random>
#include <sstream>

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

}  // namespace

RankConnections::RankConnections(c10d::Store& store, int64_t rank, int64_t size, const std::string& address,
                                 bool loopback_only)
    : size_(size) {
  uint16_t port = 0;
  if (rank == 0) {
    // Only ranks receive the secret: another process that finds the port cannot join.
    std::random_device random;
    secret_ = concat(random(), "-", random());
    listening_ = listening_socket(port, loopback_only);
    store.set(kAddressKey, std::to_string(port) + " " + secret_);
  } else {
    std::istringstream words(store.get_to_str(kAddressKey));
    if (!(words >> port >> secret_)) throw std::runtime_error("the store's entry for the watcher is damaged");
    connections_.emplace_back(connected_socket(address, port), 0);
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
    ready.push_back({connection.socket.has_ended() ? -1 : connection.socket.descriptor(), POLLIN, 0});
  ::poll(ready.data(), ready.size(), static_cast<int>(patience.count()));
  uint64_t count = 0;
  (void)!::read(wake_, &count, sizeof count);
  if ((ready[1].revents & POLLIN) != 0) {
    const int connected = retry([&] { return ::accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC); });
    if (connected >= 0)
      connections_.emplace_back(connected, -1);
    else
      accept_after_ = std::chrono::steady_clock::now() + kAcceptAgain;
  }
  std::vector<Event> events;
  for (Connection& connection : connections_) {
    if (connection.socket.has_ended()) continue;
    for (std::string& line : connection.socket.receive()) {
      if (connection.rank >= 0)
        events.push_back({connection.rank, std::move(line)});
      else
        connection.rank = admitted(line);
    }
    if (connection.socket.has_ended() && connection.rank >= 0)
      events.push_back({connection.rank, std::nullopt});
  }
  const auto is_stranger = [](const Connection& connection) { return connection.rank < 0; };
  const auto joined = std::count_if(connections_.begin(), connections_.end(), std::not_fn(is_stranger));
  const bool complete = joined == size_ - 1;
  connections_.remove_if([&](const Connection& connection) {
    return is_stranger(connection) && (complete || connection.socket.has_ended());
  });
  if (complete && listening_ >= 0) {
    ::close(listening_);
    listening_ = -1;
  }
  return events;
}

// The rank that introduces itself; -1 for a stranger.
int64_t RankConnections::admitted(const std::string& line) const {
  std::istringstream words(line);
  std::string secret;
  int64_t rank = -1;
  return words >> secret >> rank && secret == secret_ && rank > 0 && rank < size_ ? rank : -1;
}

void RankConnections::wake() {
  const uint64_t one = 1;
  (void)!::write(wake_, &one, sizeof one);
}

void RankConnections::send(const std::string& line, bool skips_busy) {
  for (Connection& connection : connections_)
    if (connection.rank >= 0 && !(skips_busy && !connection.socket.is_idle())) connection.socket.send(line);
}

void RankConnections::finish(std::optional<int64_t> rank) {
  for (Connection& connection : connections_)
    if (!rank || connection.rank == *rank) connection.socket.finish();
}

bool RankConnections::any_open(int64_t except) const {
  return std::ranges::any_of(
      connections_, [&](const Connection& one) { return !one.socket.has_ended() && one.rank != except; });
}

double WatchedProcess::cpu_seconds() {
  return seconds_of(CLOCK_PROCESS_CPUTIME_ID) - seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

// Lines to rank 0: "at STATE", "left", "failed STATUS MESSAGE". Lines from rank 0: "at STATE", "left", "lost
// TEXT".
Watcher::Watcher(const c10::intrusive_ptr<c10d::Store>& store, WatcherOptions options,
                 std::shared_ptr<const CollectiveCounts> counts, WatchedProcess& process) try
    : options_(std::move(options)),
      counts_(std::move(counts)),
      process_(process),
      interval_(std::clamp(milliseconds(static_cast<int64_t>(1000 * options_.limits.silent / 60)),
                           milliseconds(20), milliseconds(500))),
      connections_(*store, options_.rank, std::ssize(options_.hosts), options_.address,
                   options_.loopback_only),
      records_(watched_hosts(options_), options_.limits) {
  thread_ = std::thread([this] { run(); });
} catch (const std::exception& error) {
  throw ResourceError("cannot reach the other ranks: ", reason_of(error));
}

void Watcher::run() {
  Clock::time_point last = Clock::now(), sent{};
  do {
    for (const RankConnections::Event& event : connections_.wait(interval_)) handle(event);
    const Clock::time_point now = Clock::now();
    if (now - sent >= interval_ || new_activity_.exchange(false)) {
      const RankState state = own_state();
      records_.received(options_.rank, state);
      if (const std::string cause = process_.device_failure(); !cause.empty())
        lose({.rank = options_.rank,
              .location = "on " + options_.hosts[options_.rank] + " " + state.location(),
              .cause = cause});
      connections_.send("at " + state.to_line(), /*skips_busy=*/true);
      sent = now;
    }
    const auto passed = std::min<Clock::duration>(now - last, 4 * interval_);
    last = now;
    if (const auto silent = records_.pass(std::chrono::duration<double>(passed).count())) lose(*silent);
  } while (!finish());
}

void Watcher::handle(const RankConnections::Event& event) {
  const int64_t rank = event.from;
  if (!event.line) {
    if (!records_.has_left(rank)) lose(records_.lost(rank, "its process was killed, or its host is gone"));
    return connections_.finish(rank);
  }
  const auto [word, rest] = cut_word(*event.line);
  if (word == "at") {
    const auto state = RankState::from_line(rest);
    if (!state) return lose_sender(rank, *event.line);
    records_.received(rank, *state);
  } else if (word == "failed") {
    const auto [status, message] = cut_word(rest);
    const auto number = whole_number(status);
    if (!number) return lose_sender(rank, *event.line);
    lose(records_.failed(rank, *number, message));
    records_.left(rank);
  } else if (word == "left" || word == "lost") {
    records_.left(rank);
    if (is_first()) return;
    if (word == "left")
      is_over_ = true;
    else if (const auto received = LostRank::from_text(rest))
      lose(*received);
    else
      return lose_sender(rank, *event.line);
    connections_.finish(rank);  // rank 0 waits for this before it ends
  } else {
    lose_sender(rank, *event.line);
  }
}

void Watcher::lose_sender(int64_t rank, const std::string& line) {
  constexpr size_t kShown = 60;
  lose(records_.lost(rank, "sent a line that is no message of a watcher: \"" + line.substr(0, kShown) +
                               "\"; start the same program on all hosts"));
}

void Watcher::lose(const LostRank& rank) {
  if (lost_) return;
  lost_ = rank;
  lost_at_ = Clock::now();
  if (is_first()) connections_.send("lost " + lost_->to_text());
}

RankState Watcher::own_state() {
  const CollectiveCounts::Current current = counts_->current();
  const std::lock_guard lock(mutex_);
  RankState state{
      .step = step_, .activity = activity_, .ordinal = current.ordinal, .waiting = current.waiting};
  if (current.ordinal > 0) state.collective = current.what;
  state.cpu_seconds = process_.cpu_seconds();
  return state;
}

bool Watcher::finish() {
  std::string line;
  {
    const std::lock_guard lock(mutex_);
    line = last_message_;
    const bool held = lost_ && lost_->status != 0 && !has_detected_loss_ && Clock::now() - lost_at_ < kHold;
    if (line.empty() && (!lost_ || held)) return is_over_ && !lost_;
  }
  if (is_first() || !line.empty()) send_last_message(line);
  if (!line.empty()) return true;
  process_.on_loss(*lost_);
  const std::lock_guard lock(mutex_);
  called_ = true;
  changed_.notify_all();
  return true;
}

// Returns when every connected rank has received the last message: each then ends its own direction.
void Watcher::send_last_message(const std::string& line) {
  if (is_first() && line.starts_with("failed")) {
    const auto [status, message] = cut_word(cut_word(line).second);
    lose(records_.failed(0, whole_number(status).value(), message));  // written by fail()
  }
  if (!is_first() || !lost_) connections_.send(line);
  connections_.finish();
  const Clock::time_point until = Clock::now() + kLastMessage;
  while (Clock::now() < until && connections_.any_open(lost_ ? lost_->rank : -1))
    connections_.wait(interval_);
}

void Watcher::end(const std::string& line) {
  {
    const std::lock_guard lock(mutex_);
    if (last_message_.empty()) last_message_ = line;
  }
  connections_.wake();
  if (thread_.joinable()) thread_.join();
}

void Watcher::begin(int64_t step, const std::string& activity) {
  {
    const std::lock_guard lock(mutex_);
    step_ = step;
    if (activity == activity_) return;
    activity_ = activity;
  }
  new_activity_ = true;
  connections_.wake();
}

void Watcher::fail(int status, std::string message) {
  std::ranges::replace_if(
      message, [](char c) { return c == '\n' || c == '\t'; }, ' ');
  end(concat("failed ", status, " ", message));
}

bool Watcher::await_loss(milliseconds patience) {
  std::unique_lock lock(mutex_);
  has_detected_loss_ = true;
  connections_.wake();
  return changed_.wait_for(lock, patience, [&] { return called_; });
}

}  // namespace dtopp::distributed
