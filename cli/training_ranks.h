// Sets up the ranks of commands that train: their groups, memory and trainer.
//
// Collective: every function
#pragma once

#include <cstdint>

#include "dtopp/distributed/membership/cluster.h"
#include "dtopp/models/batch.h"
#include "dtopp/plan/plan.h"
#include "dtopp/train/trainer.h"

namespace dtopp::cli {

// Joins the other ranks, and applies the device, the kernels and the threads of the configuration. Throws
// RanksDiffer if another rank has another configuration.
const distributed::ProcessGroups& connect_ranks(distributed::Cluster& cluster,
                                                const config::RunConfig& config);

struct TrainingMemory {
  plan::Plan plan;
  uint64_t available = 0;  // bytes that this rank may use
};

// Plans the memory of training. Throws ResourceError if this rank has less.
TrainingMemory require_training_memory(const distributed::Cluster& cluster, const config::RunConfig& config,
                                       const distributed::ProcessGroups& groups);

train::Trainer make_trainer(const config::RunConfig& config, models::TrainingData data,
                            const distributed::ProcessGroups& groups);

}  // namespace dtopp::cli
