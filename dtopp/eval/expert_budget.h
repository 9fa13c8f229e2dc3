// Another number of active experts for a trained model: the thresholds at which it chooses that many.
#pragma once

#include "dtopp/eval/inference_model.h"

namespace dtopp {

// p, as the controller keeps it (one for all layers, or one a layer where routing.scope is layer), at which
// the tokens choose `target` experts on average: the mean over layers, or in each. tokens_BL int64.
// UsageError where the method has no threshold or `target` is not between 1 and the number of experts.
RoutingInputs solve_thresholds(const InferenceModel& model, const at::Tensor& tokens_BL, double target);

}  // namespace dtopp
