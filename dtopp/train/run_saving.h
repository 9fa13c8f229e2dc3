// Saves a run's checkpoint from all its ranks.
#pragma once

#include <filesystem>

#include "dtopp/distributed/collectives/collectives.h"
#include "dtopp/train/trainer.h"

namespace dtopp::train {

// Saves everything that the run in config.output needs to resume, each rank its part. Read the results of all
// steps first (Trainer::next_result), because they are part of the state. Older checkpoints stay valid if
// saving fails.
//
// Returns:       the path, on every rank, when the checkpoint is complete
// Throws:        DataError on a rank that cannot write; RankLost on the others
// Collective:    every rank of `ranks`
std::filesystem::path save_run(const Trainer& trainer, const config::RunConfig& config,
                               distributed::Collectives& ranks);

}  // namespace dtopp::train
