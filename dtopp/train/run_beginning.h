// What a run begins with: its own newest checkpoint, another run's (training.initialize_from, cooldown_from),
// or its seed.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "dtopp/train/trainer.h"

namespace dtopp {

// Brings the trainer there, says from where, and returns the run's own checkpoint where it goes on from that.
// UsageError naming the key and what differs where another run's checkpoint is not one of such a model or,
// to go on from, of such a run, or has no step left to go; else what Checkpoint throws. Collective.
std::optional<std::filesystem::path> begin_or_resume(Trainer& trainer, const RunConfig& config,
                                                     const std::function<void(const std::string&)>& say);

}  // namespace dtopp
