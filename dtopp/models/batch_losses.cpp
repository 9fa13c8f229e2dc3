#include "dtopp/models/batch_losses.h"

namespace dtopp {

RoutingInputs routing_inputs(const ThresholdController& controller, int64_t num_layers) {
  RoutingInputs inputs;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    inputs.threshold.push_back(controller.threshold(layer));
  }
  return inputs;
}

}  // namespace dtopp
