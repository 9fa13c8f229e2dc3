// Determines the start of a run: its own newest checkpoint, another run's (training.initialize_from,
// cooldown_from), or its seed.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "dtopp/base/console_log.h"
#include "dtopp/runs/run_directory.h"
#include "dtopp/train/trainer.h"

namespace dtopp::train {

// Restores or initializes the trainer and logs the source. Returns the run's own checkpoint if it resumes
// from one. Checkpoints of the step `before` and later ones do not count.
//
// Throws:        UsageError with the key and the difference, if the run's own checkpoint has another
//                configuration, data or tokenizer; if another run's checkpoint has another model, or for a
//                cool-down another configuration or no step left; errors of Checkpoint
// Collective:    every rank
std::optional<std::filesystem::path> begin_or_resume(Trainer& trainer, const config::RunConfig& config,
                                                     const ConsoleLog& log, int64_t before = runs::kAnyStep);

// Finds the run's newest_checkpoint on rank 0 and opens it on all ranks.
//
// Ranks that read the same files as rank 0 each verify a part of them. A rank with separate copies verifies
// all of its own.
//
// Throws:        errors of the search on rank 0; CheckpointError if the run has lost its checkpoints; errors
//                of Checkpoint if a copy is damaged; RanksDiffer if a copy is of another checkpoint
// Collective:    every rank
std::optional<checkpoint::Checkpoint> checkpoint_to_resume(const std::filesystem::path& run,
                                                           distributed::Collectives& ranks,
                                                           const ConsoleLog& log,
                                                           int64_t before = runs::kAnyStep);

}  // namespace dtopp::train
