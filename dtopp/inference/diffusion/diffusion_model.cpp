#include "dtopp/inference/diffusion/diffusion_model.h"

#include "dtopp/base/errors.h"
#include "dtopp/checkpoint/tensor_files.h"
#include "dtopp/data/images/image_data.h"
#include "dtopp/inference/checkpoint_tensors.h"
#include "dtopp/inference/expert_budget.h"

namespace dtopp::inference {

DiffusionModel load_diffusion_model(const checkpoint::Checkpoint& checkpoint, ParameterKind kind,
                                    const at::Device& device) {
  DiffusionModel loaded;
  loaded.config = checkpoint.config();
  loaded.device = device;
  const config::ModelConfig& model = loaded.config.model;
  const config::RoutingConfig& routing = loaded.config.routing;
  loaded.parameter =
      load_parameters(checkpoint, kind, models::diffusion_transformer_parameters(model, routing), device);
  loaded.model = models::bind_diffusion_transformer(model, routing, loaded.parameter);
  loaded.routing = load_routing(checkpoint, loaded.config, device);
  return loaded;
}

data::ImageLayout load_image_layout(const checkpoint::Checkpoint& checkpoint) {
  const std::string file = (checkpoint.path() / checkpoint::kImagesFile).string();
  if (checkpoint.images_json().empty())
    throw CheckpointError(file + ": is missing, so the checkpoint's image layout is unknown");
  try {
    return data::parse_image_layout(checkpoint.images_json(), file);
  } catch (const DataError& error) {
    throw CheckpointError(error.what());
  }
}

at::Tensor ModelDenoiser::predict(const at::Tensor& x_BCHW, const at::Tensor& t_B,
                                  const models::Condition& condition) {
  const models::Prediction prediction = models::predict(model_.model, x_BCHW, t_B, condition, routing_);
  if (activations_ != nullptr) activations_->add(prediction.routing);
  return prediction.output_BCHW;
}

std::vector<double> targets_of(const config::RunConfig& config, ParameterKind kind, double wanted) {
  if (wanted != 0) {
    require_target(config, wanted);
    return {wanted};
  }
  const bool moved = kind == ParameterKind::kEma && !config.model.is_dense() &&
                     config::has_controller(config.routing.method);
  return moved ? config.routing.experts : std::vector<double>();
}

}  // namespace dtopp::inference
