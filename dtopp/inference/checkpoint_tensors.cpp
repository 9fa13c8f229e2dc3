#include "dtopp/inference/checkpoint_tensors.h"

#include <memory>
#include <unordered_map>

#include "dtopp/moe/threshold_controller.h"
#include "dtopp/ops/core/host_copy.h"

namespace dtopp {

ParameterLookup load_parameters(const Checkpoint& checkpoint, ParameterKind kind,
                                const std::vector<ParameterSpec>& specs, const at::Device& device) {
  auto tensors = std::make_shared<std::unordered_map<std::string, at::Tensor>>();
  for (const ParameterSpec& spec : specs) {
    const at::Tensor tensor = at::empty(spec.shape, at::device(device).dtype(at::kFloat));
    copy_from_bytes(kind == ParameterKind::kRaw ? checkpoint.parameter(spec.name, spec.shape)
                                                : checkpoint.ema(spec.name, spec.shape),
                    tensor);
    tensors->emplace(spec.name, tensor);
  }
  return [tensors](const std::string& name) { return tensors->at(name); };
}

RoutingInputs load_thresholds(const Checkpoint& checkpoint, const RunConfig& config,
                              const at::Device& device) {
  const ModelConfig& model = config.model;
  if (model.is_dense()) return {};
  ThresholdController controller(config.routing, model.num_experts, model.num_layers, device);
  controller.restore(checkpoint.state().threshold, checkpoint.state().error_sum);
  return routing_inputs(controller, model.num_layers);
}

}  // namespace dtopp
