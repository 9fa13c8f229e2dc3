// Saves a run's checkpoints from all its ranks, while training waits or while it continues.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <future>
#include <optional>
#include <utility>
#include <vector>

#include "dtopp/base/progress.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/runs/metrics.h"
#include "dtopp/runs/run_directory.h"
#include "dtopp/train/trainer.h"

namespace dtopp::train {

// The seconds that one checkpoint took.
struct SaveTimes {
  double stall = 0;  // training waited
  double write = 0;  // until the checkpoint was complete
};

// Each rank has one. A checkpoint holds everything that the run in config.output needs to resume; each rank
// writes its part. Before each save, read the results of all steps (Trainer::next_result), because they are
// part of the state. Older checkpoints stay valid if saving fails.
//
// In the background, a thread writes a snapshot of the state; the files are those of save() at the same step.
// At most one save is pending.
//
//   start()   ranks copy their shards       training   poll()   poll()   ...   start() waits for the thread
//     \-> thread: sync metrics, write files, rename, remove old checkpoints, run.json
//
// Throws:        DataError on a rank that cannot write; RankLost on the others
// Collective:    allocate_snapshot, save, start and wait, on every rank, in the same order
class RunSaver {
 public:
  // All references must outlive this object. `metrics` is empty on ranks other than 0.
  RunSaver(const Trainer& trainer, const config::RunConfig& config, const distributed::ProcessGroups& groups,
           const runs::RunDirectory& directory, const std::optional<runs::MetricsWriter>& metrics,
           ConsoleLog log);
  // Abandons a pending save, and returns when its thread has ended.
  ~RunSaver();
  RunSaver(const RunSaver&) = delete;
  RunSaver& operator=(const RunSaver&) = delete;

  // Lets start() save in the background, if `bytes` of a snapshot fit into `room` on every rank. Otherwise it
  // logs a line, or throws ResourceError if checkpoint.asynchronous is true.
  void allocate_snapshot(uint64_t bytes, uint64_t room);

  // Saves before it returns; a pending save ends first.
  void save();
  // Saves in the background, or like save() without a snapshot. It first waits for a pending save, which a
  // request to stop abandons.
  void start(const StopToken& stop);
  // Handles the end of a pending save, if it has ended. Throws this rank's own error only: a rank with an
  // error throws it and ends the others.
  void poll();
  // Waits until no save is pending.
  void wait(const StopToken& stop = {});
  // Lets a pending save end at its next piece, without its checkpoint. One rank is enough.
  void abandon() { abandoned_ = true; }

  // The run's newest complete checkpoint that this object knows of, at first the one it resumed from.
  void resumed_from(const std::filesystem::path& checkpoint) { newest_ = checkpoint; }
  const std::filesystem::path& newest_checkpoint() const { return newest_; }
  // The times of a save that ended since the last call.
  std::optional<SaveTimes> take_times() { return std::exchange(times_, std::nullopt); }

 private:
  struct Written {
    std::filesystem::path path;
    double end = 0;  // seconds of a steady clock
  };

  Written write(const checkpoint::CheckpointContents& contents, const std::vector<at::Tensor>& shards,
                distributed::Collectives& ranks, const std::atomic<bool>* abandoned) const;
  void finish();

  const Trainer& trainer_;
  const config::RunConfig& config_;
  const distributed::ProcessGroups& groups_;
  const runs::RunDirectory& directory_;
  const std::optional<runs::MetricsWriter>& metrics_;
  ConsoleLog log_;
  std::filesystem::path newest_;
  std::optional<ops::HostSnapshot> snapshot_;
  std::optional<SaveTimes> times_;
  bool has_warned_ = false;
  double begin_ = 0, stall_ = 0;  // of the pending save
  std::exception_ptr lost_;       // another rank failed in the pending save
  std::atomic<bool> abandoned_ = false;
  std::future<Written> pending_;
};

}  // namespace dtopp::train
