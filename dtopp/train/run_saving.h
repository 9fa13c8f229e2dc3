// Saves a run's checkpoint from all its ranks.
#pragma once

#include <filesystem>

#include "dtopp/distributed/collectives/collectives.h"
#include "dtopp/train/trainer.h"

namespace dtopp::train {

// Saves everything that the run in config.output needs to resume, each rank its part. Returns the path when
// the checkpoint is complete. Older checkpoints stay valid if saving fails.
//
// Throws:        DataError on a rank that cannot write; RankLost on the others
// Collective:    every rank of `ranks`
std::filesystem::path save_run(const Trainer& trainer, const config::RunConfig& config,
                               distributed::Collectives& ranks);

}  // namespace dtopp::train
