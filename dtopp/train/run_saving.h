// How the ranks of a run save it.
#pragma once

#include <filesystem>

#include "dtopp/distributed/collectives/collectives.h"
#include "dtopp/train/trainer.h"

namespace dtopp {

// Saves what the run in config.output needs to go on, every rank its part, and returns the checkpoint once it
// is complete. Where a rank cannot write, that one throws DataError and the others RankLost; the checkpoints
// that were there stay. Collective.
std::filesystem::path save_run(const Trainer& trainer, const RunConfig& config, Collectives& ranks);

}  // namespace dtopp
