// What is known of each rank of a run, and when that means that the run cannot go on. No clocks, threads or
// connections: watcher.h brings those.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dtopp {

// Where a rank is, as it says itself. Activities and collectives are single words.
struct RankState {
  int64_t step = 0;
  std::string activity = "start";  // "start", "step", "validation", "save", "report" or "evaluation"
  std::string collective = "-";    // the one it waits for, else the last that it started; "-": none yet
  int64_t ordinal = 0;             // of that collective
  bool waiting = false;            // for it
  double cpu_seconds = 0;          // that the rank has computed

  std::string to_line() const;
  // Nothing where the line is no such state.
  static std::optional<RankState> from_line(const std::string& line);
  // "at step 12, waiting in gather", "saving at step 12, after gather".
  std::string place() const;
};

// The rank that ended a run for the others.
struct LostRank {
  int64_t rank = -1;       // -1: none of them more than another
  bool has_ended = false;  // with an error of its own
  std::string place;       // "on node7 at step 12, after gather"
  std::string cause;       // "silent for 60 s (stopped, or cut off)"

  std::string line() const;  // "rank 3 on node7 at step 12, after gather: silent for …"
  std::string to_text() const;
  static std::optional<LostRank> from_text(const std::string& text);
};

struct SilenceLimits {
  double silent = 60;   // seconds without a word of a rank, or without work of any
  double absent = 300;  // seconds until a rank's first word
};

class RankRecords {
 public:
  // By rank. Those whose host is empty are not watched.
  RankRecords(std::vector<std::string> hosts, const SilenceLimits& limits);

  void heard(int64_t rank, const RankState& state);
  // It has reached the run's end; nothing is expected of it any more.
  void left(int64_t rank);
  bool has_left(int64_t rank) const { return at(rank).left; }

  LostRank died(int64_t rank) const;
  LostRank failed(int64_t rank, int status, const std::string& message) const;

  // `seconds` went by in which this process listened. Somebody then is lost where
  // - a rank has been silent for the limit: its process is stopped, or its host is cut off or gone. Ranks
  //   speak from a thread of their own, however long the others compute;
  // - the whole run has stood still for the limit: no rank has started a collective, gone on to another step
  //   or used a processor for more than a two-hundredth of the time. Lost is then the rank that others wait
  //   for.
  // As long as one rank works nothing stands still, so neither a long computation or transfer nor a slow rank
  // is an alarm. A rank that neither steps nor validates, and waits for no other, counts as working: it may
  // wait for a disk, or for a terminal that somebody has halted. One that computes for ever is therefore not
  // found here but by its collectives' own timeout.
  std::optional<LostRank> pass(double seconds);

 private:
  struct Record {
    std::string host{};
    RankState state{};
    bool heard = false, left = false;
    double silent = 0;            // seconds since its last word
    double still = 0;             // seconds since it was last seen to work
    double cpu_when_working = 0;  // cpu_seconds at that moment
  };
  const Record& at(int64_t rank) const { return records_.at(static_cast<size_t>(rank)); }
  LostRank lost(int64_t rank, std::string cause) const;
  std::optional<LostRank> find_silent() const;
  std::optional<LostRank> find_stuck() const;

  std::vector<Record> records_;
  SilenceLimits limits_;
};

}  // namespace dtopp
