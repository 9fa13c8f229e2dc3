// Opens checkpoints on all ranks of a run.
//
// Ranks that see the same files as rank 0 each verify a part of them. A rank with separate copies verifies
// all of its own.
//
// Throws:        errors of the search on rank 0; errors of Checkpoint if a copy is damaged
// Collective:    every rank of `ranks`
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "dtopp/base/console_log.h"
#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/distributed/collectives/collectives.h"

namespace dtopp {

// Finds the run's newest_checkpoint on rank 0 and opens it on all ranks, to resume from.
std::optional<Checkpoint> checkpoint_to_resume(const std::filesystem::path& run, Collectives& ranks,
                                               const ConsoleLog& log);

// Opens the checkpoint that a user names (open_checkpoint), as found by rank 0.
Checkpoint named_checkpoint(const std::filesystem::path& path, CheckpointUse use, Collectives& ranks,
                            const ConsoleLog& log);

}  // namespace dtopp
