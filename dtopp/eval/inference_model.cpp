#include "dtopp/eval/inference_model.h"

#include <unordered_map>

#include "dtopp/ops/host_copy.h"

namespace dtopp {

InferenceModel load_inference_model(const Checkpoint& checkpoint, const at::Device& device) {
  InferenceModel loaded;
  loaded.config = load_run_config(checkpoint.path() / "config.yaml", {});
  const ModelConfig& model = loaded.config.model;
  const RoutingConfig& routing = loaded.config.routing;

  std::unordered_map<std::string, at::Tensor> tensors;
  for (const ParameterSpec& spec : language_model_parameters(model, routing)) {
    const at::Tensor tensor = at::empty(spec.shape, at::device(device).dtype(at::kFloat));
    copy_from_bytes(checkpoint.parameter(spec.name, spec.shape), tensor);
    tensors.emplace(spec.name, tensor);
  }
  loaded.model =
      bind_language_model(model, routing, [&](const std::string& name) { return tensors.at(name); });

  if (!model.is_dense()) {
    ThresholdController controller(routing, model.num_experts, model.num_layers, device);
    controller.restore(checkpoint.state().threshold, checkpoint.state().error_sum);
    loaded.routing = routing_inputs(controller, model.num_layers);
  }
  return loaded;
}

}  // namespace dtopp
