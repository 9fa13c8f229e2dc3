// Where a run keeps what, and which of its checkpoints is taken.
//   <run>/config.yaml  metrics.jsonl  events.out.tfevents.*  checkpoints/step-00001000/
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "dtopp/checkpoint/checkpoint.h"

namespace dtopp {

// The folder of a run's checkpoints.
std::filesystem::path checkpoints_of(const std::filesystem::path& run);

// The file that holds a run's configuration, every key written out.
std::filesystem::path config_file_of(const std::filesystem::path& run);

// What that file holds; nullopt where there is none: the run has made no step yet. UsageError (file, line,
// key) where it is no configuration.
std::optional<RunConfig> config_of(const std::filesystem::path& run);

// The newest checkpoint in a run's folder of checkpoints that verifies for `use`; damaged ones are passed
// over, each reported through `warn`. nullopt when there is none, CheckpointError when there are some but
// none verifies.
std::optional<Checkpoint> newest_checkpoint(const std::filesystem::path& checkpoints,
                                            const std::function<void(const std::string&)>& warn,
                                            CheckpointUse use = CheckpointUse::kTraining,
                                            const VerifyFiles& verify = verify_content);

// What a user names: a checkpoint, a run or its folder of checkpoints (the newest that verifies). UsageError
// where there is no checkpoint.
Checkpoint open_checkpoint(const std::filesystem::path& path,
                           const std::function<void(const std::string&)>& warn,
                           CheckpointUse use = CheckpointUse::kInference,
                           const VerifyFiles& verify = verify_content);

}  // namespace dtopp
