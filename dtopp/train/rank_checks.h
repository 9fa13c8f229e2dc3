// Checks at the start of a run that all ranks have the same configuration and data.
//
// Collective: every rank, in the same order.
#pragma once

#include "dtopp/config/run_config.h"
#include "dtopp/distributed/collectives/collectives.h"
#include "dtopp/models/batch.h"

namespace dtopp {

// Throws RanksDiffer if a rank has another configuration than rank 0.
void check_configuration(const RunConfig& config, Collectives& ranks);

// Throws RanksDiffer if a rank has opened other data than rank 0.
void check_data(const TrainingData& data, Collectives& ranks);

}  // namespace dtopp
