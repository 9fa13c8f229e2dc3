#include "diffusion_parity.h"

#include <unordered_map>

#include "dtopp/device/device.h"
#include "dtopp/models/diffusion_transformer.h"
#include "dtopp/models/image_batches.h"
#include "dtopp/models/make_model.h"
#include "dtopp/moe/make_router.h"
#include "dtopp/moe/solving.h"
#include "dtopp/train/trainer.h"
#include "tensor_output.h"

namespace dtopp {
namespace {

using Tensors = std::unordered_map<std::string, at::Tensor>;

// The parameters, as autograd leaves in the precision of the computation.
Tensors read_parameters(const SafetensorsFile& input, const config::RunConfig& config, at::ScalarType type) {
  Tensors parameters;
  for (const parameters::ParameterSpec& spec : models::make_model(config).parameters) {
    const at::Tensor value = read_tensor(input, spec.name);
    if (value.sizes() != at::IntArrayRef(spec.shape)) throw std::runtime_error(spec.name + ": another shape");
    parameters.emplace(spec.name,
                       value.to(spec.compute_precision() ? type : at::kFloat).clone().requires_grad_());
  }
  return parameters;
}

class InputImages : public models::ImageReader {
 public:
  InputImages(const SafetensorsFile& input, const config::ModelConfig& model)
      : x0_(read_tensor(input, "x0")) {
    if (model.num_classes > 0) label_ = read_tensor(input, "label");
    if (model.text_length > 0) text_ = read_tensor(input, "text");
  }
  uint64_t size() const override { return static_cast<uint64_t>(x0_.size(0)); }
  models::TrainingImage read(uint64_t index, bool flip) const override {
    const auto i = static_cast<int64_t>(index);
    models::TrainingImage sample{values(flip ? x0_[i].flip({-1}) : x0_[i]), 0, {}};
    if (label_.defined()) sample.label = label_[i].item<int64_t>();
    if (text_.defined()) sample.text_LS = values(text_[i]);
    return sample;
  }

 private:
  static std::vector<float> values(const at::Tensor& row) {
    const at::Tensor flat = row.contiguous();
    return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
  }

  at::Tensor x0_, label_, text_;
};

}  // namespace

void compute_diffusion(const char* config_path, const char* input_path, const char* output_path) {
  const config::RunConfig config = config::load_model_run_config(config_path, {});
  const SafetensorsFile input(input_path);
  const Tensors parameters =
      read_parameters(input, config, device::compute_type(config.training.precision, at::kCPU));
  const models::DiffusionTransformer model = models::bind_diffusion_transformer(
      config.model, config.routing, [&](const std::string& name) { return parameters.at(name); });
  moe::Routing inputs;
  if (!config.model.is_dense()) {
    if (config.routing.method == config::RoutingMethod::kTopK)
      inputs.router = moe::make_router(config, at::kCPU);
    else
      inputs.router = std::make_shared<moe::TopPRouter>(config, read_tensor(input, "threshold"));
  }
  models::Batch batch;
  for (const char* name : {"x0", "noise", "t", "class", "text"})
    if (input.find(name) != nullptr) batch.tensors.emplace_back(name, read_tensor(input, name));
  batch.tensors.emplace_back("group", at::zeros_like(batch.tensor("t"), at::kLong));

  TensorOutput output;
  const models::BatchLosses losses =
      models::diffusion_losses(model, batch, inputs, config.diffusion.objective, config.loss);
  {
    const at::NoGradGuard no_grad;
    const models::Noised noised = models::add_noise(config.diffusion.objective, batch.tensor("x0"),
                                                    batch.tensor("noise"), batch.tensor("t"));
    const models::Prediction prediction =
        models::predict(model, noised.x_BCHW, batch.tensor("t"), models::condition_of(batch), inputs);
    output.add("prediction", prediction.output_BCHW);
    for (size_t layer = 0; layer < prediction.routing.size(); ++layer)
      output.add("active_histogram/" + std::to_string(layer), prediction.routing[layer].active_histogram);
  }
  output.add("sample_loss", losses.samples->loss_B);
  output.add("sample_selected", losses.samples->num_assignments_BL.clone());
  output.add("loss/total", losses.total);
  for (const auto& [name, value] : losses.values)
    output.add("loss/" + name.substr(0, name.rfind("_loss")), value);
  losses.total.backward();
  for (const auto& [name, tensor] : parameters)
    output.add("grad/" + name, tensor.grad().defined() ? tensor.grad() : at::zeros_like(tensor));
  output.write(output_path);
}

void train_diffusion(const char* config_path, const char* input_path, const char* output_path) {
  const config::RunConfig config = config::load_model_run_config(config_path, {});
  const SafetensorsFile input(input_path);
  models::TrainingData data;
  const auto images = std::make_shared<const InputImages>(input, config.model);
  data.training = models::training_images(config, images);
  data.validation = models::validation_images(config, images);
  data.validation_samples = images->size();
  train::Trainer trainer(config, models::make_model(config), data, at::kFloat);
  trainer.initialize();

  TensorOutput output;
  const auto add_parameters = [&](const std::string& prefix) {
    for (const parameters::ParameterSpec& spec : trainer.parameters().specs())
      output.add(prefix + spec.name, trainer.parameters().main_param(spec.name));
  };
  const auto add_batch = [&](const std::string& prefix, const models::Batch& batch) {
    for (const auto& [name, tensor] : batch.tensors) output.add(prefix + name, tensor);
  };
  add_parameters("initial/");
  const int64_t samples = config.training.steps * config.training.global_batch_size;
  add_batch("training_batch/", data.training->read(0, samples));
  add_batch("validation_batch/", data.validation->read(0, static_cast<int64_t>(data.validation_samples)));
  for (int64_t step = 1; step <= config.training.steps; ++step) {
    trainer.step({});
    const train::StepResult result = trainer.next_result(0).value();
    const auto add = [&](const std::string& name, double value) {
      output.add("step/" + std::to_string(step) + "/" + name, at::scalar_tensor(value));
    };
    add("total", result.loss);
    for (const auto& [name, value] : result.losses) add(name.substr(0, name.rfind("_loss")), value);
    add("grad_norm", result.grad_norm);
    if (config.model.is_dense()) continue;
    add("active_experts", result.activations.summary().mean);
    const std::vector<double>* const p = result.router_values("threshold");
    for (size_t layer = 0; p != nullptr && layer < static_cast<size_t>(trainer.model().num_routed_layers);
         ++layer)
      add("threshold/" + std::to_string(layer), p->at(p->size() > 1 ? layer : 0));
  }
  add_parameters("final/");
  const auto validation =
      trainer.validate(static_cast<int64_t>(data.validation_samples) * trainer.model().tokens_per_sample, {});
  output.add("validation/loss", at::scalar_tensor(validation->loss));
  for (const models::ValidationGroup& group : validation->groups) {
    output.add("validation/loss_" + group.name, at::scalar_tensor(group.loss));
    output.add("validation/active_experts_" + group.name, at::tensor(group.active_experts_L, at::kDouble));
  }
  output.write(output_path);
}

}  // namespace dtopp
