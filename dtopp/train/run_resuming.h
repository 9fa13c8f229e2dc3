// What the ranks of a run go on from.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/distributed/collectives.h"

namespace dtopp {

// The checkpoint that rank 0 finds to go on from (newest_checkpoint of the run's), opened by all. The ranks
// that see the same files as rank 0 each read a part of them to verify it; one that has copies of its own
// reads all of those. Errors are newest_checkpoint's, on rank 0, and Checkpoint's where a copy is not right.
// Collective.
std::optional<Checkpoint> checkpoint_to_resume(const std::filesystem::path& run, Collectives& ranks,
                                               const std::function<void(const std::string&)>& warn);

}  // namespace dtopp
