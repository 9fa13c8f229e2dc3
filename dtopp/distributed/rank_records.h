// Records the last message of each rank and decides when the run cannot continue.
//
// It uses no clocks, threads or connections; watcher.h adds those.
//
// Collective:    no
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dtopp::distributed {
// The state of a rank, as the rank reports it. `activity` and `collective` are single words.
struct RankState {
  int64_t step = 0;
  std::string activity = "start";  // "start", "step", "validation", "save", "report" or "evaluation"
  std::string collective = "-";    // the one it waits for, or the last that it started; "-" before the first
  int64_t ordinal = 0;             // of that collective
  bool waiting = false;            // whether it waits for that collective
  double cpu_seconds = 0;          // processor time of the rank

  std::string to_line() const;
  // Returns nullopt if the line is not a state.
  static std::optional<RankState> from_line(const std::string& line);
  // "at step 12, waiting in gather", "saving at step 12, after gather".
  std::string location() const;
};

// The rank that ended the run for the other ranks.
struct LostRank {
  int64_t rank = -1;     // -1: all ranks alike
  int64_t status = 0;    // of its own end, with an error or by a stop; 0: it was lost
  std::string location;  // "on node7 at step 12, after gather"
  std::string cause;     // "silent for 60 s (stopped, or cut off), while others wait in gather"

  std::string line() const;  // "rank 3 on node7 at step 12, after gather: silent for …"
  std::string to_text() const;
  static std::optional<LostRank> from_text(const std::string& text);
};

struct SilenceLimits {
  double silent = 60;   // seconds without a message from a rank, or without progress of all ranks
  double absent = 300;  // seconds until a rank's first message
};

class RankRecords {
 public:
  // Hosts by rank. A rank with an empty host is not watched.
  RankRecords(std::vector<std::string> hosts, const SilenceLimits& limits);

  // Call it for this process's rank too, watched or not.
  void received(int64_t rank, const RankState& state);
  // The rank has finished the run and sends no more states.
  void left(int64_t rank) { records_.at(rank).left = true; }
  bool has_left(int64_t rank) const { return at(rank).left; }

  LostRank failed(int64_t rank, int64_t status, const std::string& message) const;
  // The rank with this cause, at its last known location.
  LostRank lost(int64_t rank, std::string cause) const;

  // Advances time by `seconds` in which this process received messages. Returns a lost rank in two cases:
  // - A rank sent no message for the limit: its process is stopped, or its host is cut off or down. Ranks
  //   send from a separate thread, so long computations do not delay their messages.
  // - The whole run made no progress for the limit: no rank started a collective, began another step or used
  //   more than 0.5 % of a processor. The lost rank is the one that the others wait for.
  //
  // One working rank counts as progress of the run. Long computations, long transfers and slow ranks
  // therefore raise no alarm. A rank that is outside a step or a validation and waits for no collective also
  // counts as working: it may wait for a disk or a paused terminal. A rank that computes forever is found
  // only by the timeout of its collectives.
  std::optional<LostRank> pass(double seconds);

 private:
  struct Record {
    std::string host{};
    RankState state{};
    bool has_reported = false, left = false;
    double silent = 0;            // seconds since its last message
    double still = 0;             // seconds since its last observed progress
    double cpu_when_working = 0;  // cpu_seconds at that progress
  };
  const Record& at(int64_t rank) const { return records_.at(rank); }
  // ", while others wait in save". The last message of a silent rank may be older than that collective. Empty
  // if no other rank waits.
  std::string wait_of_others(const Record& silent) const;
  std::optional<LostRank> find_silent() const;
  std::optional<LostRank> find_stuck() const;

  std::vector<Record> records_;
  SilenceLimits limits_;
};

}  // namespace dtopp::distributed
