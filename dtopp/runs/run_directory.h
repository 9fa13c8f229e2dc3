// Names the files of a run directory, and selects which of its checkpoints to open.
//
//   <run>/config.yaml  metrics.jsonl  events.out.tfevents.*  checkpoints/step-00001000/
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "dtopp/base/console_log.h"
#include "dtopp/checkpoint/checkpoint.h"

namespace dtopp {

// The folder with a run's checkpoints.
std::filesystem::path checkpoints_of(const std::filesystem::path& run);

// The file with a run's configuration, in which every key is written out.
std::filesystem::path config_file_of(const std::filesystem::path& run);

// The configuration in that file; nullopt if the file does not exist, because the run has made no step yet.
// Throws UsageError (file, line, key) if it is not a configuration.
std::optional<RunConfig> config_of(const std::filesystem::path& run);

// The newest checkpoint in `checkpoints` that verifies for `use`; nullopt if there is none. Damaged
// checkpoints are skipped, and each one is logged as a warning.
//
// Throws:        CheckpointError if there are checkpoints but none verifies
std::optional<Checkpoint> newest_checkpoint(const std::filesystem::path& checkpoints, const ConsoleLog& log,
                                            CheckpointUse use = CheckpointUse::kTraining,
                                            const VerifyFiles& verify = verify_content);

// Opens a checkpoint that a user names. `path` is a checkpoint, a run, or a run's folder of checkpoints; of
// several, the newest that verifies is opened. Throws UsageError if there is no checkpoint.
Checkpoint open_checkpoint(const std::filesystem::path& path, const ConsoleLog& log,
                           CheckpointUse use = CheckpointUse::kInference,
                           const VerifyFiles& verify = verify_content);

}  // namespace dtopp
