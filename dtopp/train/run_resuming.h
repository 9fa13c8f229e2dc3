// The checkpoints that the ranks of a run read together.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/distributed/collectives/collectives.h"

namespace dtopp {

// Both open what rank 0 finds on all ranks. The ranks that see the same files as rank 0 each read a part of
// them to verify it; one that has copies of its own reads all of those. Errors are those of what finds it, on
// rank 0, and Checkpoint's where a copy is not right. Collective.

// newest_checkpoint of the run's, to go on from.
std::optional<Checkpoint> checkpoint_to_resume(const std::filesystem::path& run, Collectives& ranks,
                                               const std::function<void(const std::string&)>& warn);

// open_checkpoint of what a user names.
Checkpoint named_checkpoint(const std::filesystem::path& path, CheckpointUse use, Collectives& ranks,
                            const std::function<void(const std::string&)>& warn);

}  // namespace dtopp
