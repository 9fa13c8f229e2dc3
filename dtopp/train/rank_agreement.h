// What the ranks of a run agree on besides the numbers of its steps. Every rank calls these in the same
// order; one by itself agrees with itself.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/config/run_config.h"
#include "dtopp/distributed/collectives.h"

namespace dtopp {

// UsageError where several ranks cannot do what is configured, or one has another configuration than rank 0.
void check_ranks(const RunConfig& config, const at::Device& device, Collectives& ranks);

// Whether it is so on any of them.
bool any_rank(Collectives& ranks, bool here);

// The checkpoint that rank 0 finds to go on from (newest_checkpoint of the run's), opened by all.
std::optional<Checkpoint> checkpoint_to_resume(const std::filesystem::path& run, Collectives& ranks,
                                               const std::function<void(const std::string&)>& warn);

}  // namespace dtopp
