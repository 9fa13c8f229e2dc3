// Repeats one step of a run and finds its first non-finite value.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "dtopp/train/trainer.h"

namespace dtopp::train {

// Runs the trainer's next step under a NonfiniteWatch. Returns on rank 0, from the rank whose first
// non-finite value has the fewest operations before it:
//
//   step, finite   the step, and whether the run applied it
//   loss, losses, grad_norm
//   parameters     before the step: names of those with non-finite values
//   origin         the first non-finite value, or null; with its micro-batch's samples
//   largest        the largest magnitude of each layer and pass
//
// Collective: every rank
nlohmann::ordered_json replay_step(Trainer& trainer, int64_t micro_batch_size);

// The same as lines of text.
std::string replay_text(const nlohmann::ordered_json& replay);

}  // namespace dtopp::train
