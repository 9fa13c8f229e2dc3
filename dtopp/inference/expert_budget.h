// Another number of active experts for a trained model: the thresholds at which it chooses that many.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "dtopp/inference/inference_model.h"
#include "dtopp/models/solve_thresholds.h"

namespace dtopp {

// UsageError where the method has no threshold or `target` is not between 1 and the number of experts.
void require_target(const RunConfig& config, double target);

// p, as the controller keeps it (one for all layers, or one a layer where routing.scope is layer), at which
// the tokens choose `target` experts on average: the mean over layers, or in each. tokens_BL int64.
// UsageError as require_target.
RoutingInputs solve_thresholds(const InferenceModel& model, const at::Tensor& tokens_BL, double target);

// The first windows [B, L] of a text's ids, kSolveTokens of them. DataError that begins with `source`, the
// text's name, where there is no id.
at::Tensor solving_windows(std::span<const int64_t> ids, int64_t sequence_length, const std::string& source);

}  // namespace dtopp
