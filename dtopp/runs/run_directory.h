// The directory of a run: the names of its files, the lock that one process holds, and which of its
// checkpoints to open.
//
//   <run>/config.yaml  run.json  metrics.jsonl  events.out.tfevents.*  checkpoints/step-00001000/
#pragma once

#include <limits>

#include "dtopp/base/files.h"
#include "dtopp/base/progress.h"
#include "dtopp/checkpoint/checkpoint.h"

namespace dtopp::runs {

fs::path checkpoints_of(const fs::path& run);

// The file with a run's configuration, in which every key is written out.
fs::path config_file_of(const fs::path& run);

// The configuration in that file; nullopt if the file does not exist, because the run has made no step yet.
// Throws UsageError (file, line, key) if it is not a configuration.
std::optional<config::RunConfig> config_of(const fs::path& run);

// Whether the paths of data.train count as part of a configuration. They do not if the content of the data is
// compared instead.
enum class DataPaths { kCompared, kIgnored };

// Throws UsageError "<what>: <keys>: …" if the configurations differ in a key that affects the result.
void require_same_configuration(const std::string& what, const config::RunConfig& there,
                                const config::RunConfig& here, DataPaths paths);

// Throws CheckpointError if the run has a history, although its folder of checkpoints holds none. A run that
// ended before its first checkpoint passes: it starts again.
void require_no_lost_checkpoints(const fs::path& run);

inline constexpr int64_t kAnyStep = std::numeric_limits<int64_t>::max();

// The newest checkpoint in `checkpoints` of a step before `before` that verifies for `use`; nullopt if there
// is none. Damaged checkpoints are skipped, and each one is logged as a warning.
//
// Throws:        CheckpointError if there are checkpoints but none verifies; UnreadableCheckpoint if one
//                cannot be read that is newer than those that verify
std::optional<checkpoint::Checkpoint> newest_checkpoint(
    const fs::path& checkpoints, const ConsoleLog& log,
    checkpoint::CheckpointUse use = checkpoint::CheckpointUse::kTraining,
    const checkpoint::VerifyFiles& verify = verify_content, int64_t before = kAnyStep);

// Opens a checkpoint that a user names. `path` is a checkpoint, a run, or a run's folder of checkpoints; of
// several, the newest that verifies is opened. Throws UsageError if there is no checkpoint.
checkpoint::Checkpoint open_checkpoint(const fs::path& path, const ConsoleLog& log,
                                       checkpoint::CheckpointUse use = checkpoint::CheckpointUse::kInference,
                                       const checkpoint::VerifyFiles& verify = verify_content);

// Holds config.output, which one process may use at a time. On ranks other than 0 it does nothing. `config`
// must outlive it.
class RunDirectory {
 public:
  // Locks the directory if it exists. A new run creates nothing before create().
  //
  // Throws: UsageError if another process holds it, or if it holds a run whose configuration differs in a key
  //         that affects the result
  RunDirectory(const config::RunConfig& config, bool is_main_rank);
  // Unless keep() was called, removes everything that create() created and that is still empty.
  ~RunDirectory();

  // Checks the space of the file system for checkpoints of `checkpoint_bytes` bytes. Logs a warning if it is
  // too small for all that the run holds at once: checkpoint.keep of them, and one that is written before
  // the oldest is removed. Throws DataError if it is too small for one.
  void require_space(uint64_t checkpoint_bytes, const ConsoleLog& log) const;
  // Creates missing parts of the path and locks the directory, unless this object holds the lock. Throws as
  // the constructor, and DataError if it cannot be created.
  void create();
  // Writes config.yaml and run.json, and keeps the directory. `saved_step` is the step of the run's newest
  // checkpoint; 0: none. run.json also counts how often the run has started again. Call it after create(),
  // on rank 0 only, like record_saved().
  void keep(int64_t saved_step = 0);
  // Does what the save of the last step still has to do after its checkpoint is complete, if a crash came
  // before it. Other saves need no such call, because the next one cleans up.
  void finish_save(int64_t step);
  // Records in run.json that the checkpoint of this step is complete.
  void record_saved(int64_t step) const;

 private:
  void lock();
  void remove_created() const;

  const config::RunConfig& config_;
  fs::path path_;
  bool is_main_rank_;
  fs::path first_created_;  // the outermost created directory; empty: none
  bool lock_is_new_ = false;
  bool kept_ = false;
  int64_t restarts_ = 0;
  std::optional<DirectoryLock> lock_;
};

}  // namespace dtopp::runs
