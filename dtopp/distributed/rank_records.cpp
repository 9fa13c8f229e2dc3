#include "dtopp/distributed/rank_records.h"

#include <algorithm>
#include <limits>
#include <sstream>

namespace dtopp::distributed {
namespace {

// Share of one core's time. A waiting process uses far less.
constexpr double kLeastWork = 0.005;

std::string seconds_text(double seconds) {
  std::ostringstream text;
  text << seconds << " s";
  return text.str();
}

}  // namespace

std::string RankState::to_line() const {
  std::ostringstream line;
  line.precision(std::numeric_limits<double>::max_digits10);
  line << step << ' ' << activity << ' ' << collective << ' ' << ordinal << ' ' << waiting << ' '
       << cpu_seconds;
  return line.str();
}

std::optional<RankState> RankState::from_line(const std::string& line) {
  std::istringstream words(line);
  RankState state;
  words >> state.step >> state.activity >> state.collective >> state.ordinal >> state.waiting >>
      state.cpu_seconds;
  if (words.fail()) return std::nullopt;
  return state;
}

std::string RankState::location() const {
  std::string text = activity == "start" ? "before its first step" : "at step " + std::to_string(step);
  if (activity == "save") text = "saving " + text;
  if (activity == "validation") text = "validating " + text;
  if (activity == "evaluation") text = step > 0 ? "evaluating " + text : "evaluating";
  if (ordinal > 0) text += (waiting ? ", waiting in " : ", after ") + collective;
  return text;
}

std::string LostRank::line() const {
  return (rank < 0 ? "all ranks" : "rank " + std::to_string(rank)) + " " + location + ": " + cause;
}

std::string LostRank::to_text() const {
  return std::to_string(rank) + " " + std::to_string(status) + "\t" + location + "\t" + cause;
}

std::optional<LostRank> LostRank::from_text(const std::string& text) {
  const size_t location = std::min(text.find('\t'), text.size());
  const size_t cause = text.find('\t', location + 1);
  std::istringstream numbers(text.substr(0, location));
  LostRank lost;
  numbers >> lost.rank >> lost.status;
  if (numbers.fail() || cause == text.npos) return std::nullopt;
  lost.location = text.substr(location + 1, cause - location - 1);
  lost.cause = text.substr(cause + 1);
  return lost;
}

RankRecords::RankRecords(std::vector<std::string> hosts, const SilenceLimits& limits) : limits_(limits) {
  for (std::string& host : hosts) {
    const bool watched = !host.empty();
    records_.push_back({.host = std::move(host), .left = !watched});
  }
}

void RankRecords::received(int64_t rank, const RankState& state) {
  Record& record = records_.at(rank);
  record.silent = 0;
  const bool moved = !record.has_reported || state.ordinal != record.state.ordinal ||
                     state.step != record.state.step || state.activity != record.state.activity;
  const bool computed = state.cpu_seconds - record.cpu_when_working > kLeastWork * record.still;
  const bool trains = state.activity == "step" || state.activity == "validation";
  if (moved || computed || (!trains && !state.waiting)) {
    record.still = 0;
    record.cpu_when_working = state.cpu_seconds;
  }
  record.has_reported = true;
  record.state = state;
}

LostRank RankRecords::lost(int64_t rank, std::string cause) const {
  const Record& record = at(rank);
  return {.rank = rank,
          .location = "on " + record.host + " " + record.state.location(),
          .cause = std::move(cause)};
}

LostRank RankRecords::failed(int64_t rank, int64_t status, const std::string& message) const {
  LostRank failed = lost(rank, "ended with status " + std::to_string(status) + ": " + message);
  failed.status = status;
  return failed;
}

std::optional<LostRank> RankRecords::pass(double seconds) {
  for (Record& record : records_) {
    record.silent += seconds;
    record.still += seconds;
  }
  if (auto lost = find_silent()) return lost;
  return find_stuck();
}

std::string RankRecords::wait_of_others(const Record& silent) const {
  const Record* last = nullptr;
  for (const Record& other : records_) {
    if (&other == &silent || !other.state.waiting) continue;
    if (last == nullptr || other.state.ordinal > last->state.ordinal) last = &other;
  }
  return last == nullptr ? "" : ", while others wait in " + last->state.collective;
}

std::optional<LostRank> RankRecords::find_silent() const {
  for (size_t i = 0; i < records_.size(); ++i) {
    const Record& record = records_[i];
    const auto rank = static_cast<int64_t>(i);
    if (record.left) continue;
    if (!record.has_reported && record.silent > limits_.absent)
      return lost(rank, "did not join within " + seconds_text(limits_.absent));
    if (record.has_reported && record.silent > limits_.silent)
      return lost(rank, "silent for " + seconds_text(limits_.silent) + " (stopped, or cut off)" +
                            wait_of_others(record));
  }
  return std::nullopt;
}

std::optional<LostRank> RankRecords::find_stuck() const {
  // A rank is behind another if it alone does not wait, or if its collective is earlier.
  const auto is_behind = [](const Record& a, const Record& b) {
    return a.state.waiting != b.state.waiting ? b.state.waiting : a.state.ordinal < b.state.ordinal;
  };
  const Record *first = nullptr, *last = nullptr;
  int64_t watched = 0;
  for (const Record& record : records_) {
    if (record.left) continue;
    ++watched;
    if (!record.has_reported || record.still <= limits_.silent) return std::nullopt;
    if (first == nullptr || is_behind(record, *first)) first = &record;
    if (last == nullptr || is_behind(*last, record)) last = &record;
  }
  if (watched < 2 || !last->state.waiting) return std::nullopt;  // no rank waits for another
  const std::string cause =
      "stuck for " + seconds_text(limits_.silent) + ", while others wait in " + last->state.collective;
  if (is_behind(*first, *last)) return lost(first - records_.data(), cause);
  return LostRank{
      .location = last->state.location(),
      .cause = "no progress for " + seconds_text(limits_.silent) + "; check the network between them"};
}

}  // namespace dtopp::distributed
