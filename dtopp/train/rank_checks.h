// Checks at the start of a run that all ranks have the same configuration, kernels and data.
//
// Collective: every rank, in the same order.
#pragma once

#include "dtopp/config/run_config.h"
#include "dtopp/distributed/collectives/collectives.h"
#include "dtopp/models/batch.h"

namespace dtopp::train {

// Throws RanksDiffer if a rank has another configuration than rank 0.
void check_configuration(const config::RunConfig& config, distributed::Collectives& ranks);

// Gives every rank rank 0's choice of fused kernels. Throws RanksDiffer if ranks compute with other kernels
// than rank 0, on another processor or by DTOPP_MOE_KERNELS. Does nothing without parallel.reproducible.
void agree_on_kernels(const config::RunConfig& config, const at::Device& device,
                      distributed::Collectives& ranks);

// Throws RanksDiffer if a rank has opened other data than rank 0.
void check_data(const models::TrainingData& data, distributed::Collectives& ranks);

}  // namespace dtopp::train
