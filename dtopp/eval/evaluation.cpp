#include "dtopp/eval/evaluation.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/safetensors.h"
#include "dtopp/config/config.h"
#include "dtopp/data/images/image_data.h"
#include "dtopp/models/diffusion_transformer.h"
#include "dtopp/models/make_model.h"
#include "dtopp/models/solve_thresholds.h"
#include "dtopp/ops/core/host_copy.h"

namespace dtopp::eval {
namespace {

using nlohmann::ordered_json;

models::LossFunction losses_of(const inference::DiffusionModel& model) {
  return models::make_model(model.config).bind(model.parameter);
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

std::vector<double> experts_of_layers(const moe::ActivationStatistics& activations) {
  std::vector<double> means;
  for (int64_t layer = 0; layer < activations.num_layers(); ++layer)
    means.push_back(activations.summary(layer).mean);
  return means;
}

std::string format_layers(const std::vector<double>& experts) {
  std::string line;
  for (const double one : experts) line += format(" %7.3f", one);
  return line;
}

}  // namespace

models::TrainingData open_evaluation_images(const checkpoint::Checkpoint& checkpoint,
                                            const config::RunConfig& config,
                                            const std::filesystem::path& folder) {
  config::RunConfig with_images = config;
  with_images.data.validation = {{.path = folder.string()}};
  with_images.data.train = {{.path = folder.string()}};
  models::TrainingData data = models::open_training_data(with_images, data::Verify::kChanged);
  data::require_alike(inference::load_image_layout(checkpoint), checkpoint.path().string(),
                      data::parse_image_layout(data.images_json, folder.string()), folder.string());
  return data;
}

models::ValidationResult measure_diffusion(const inference::DiffusionModel& model,
                                           const moe::Routing& routing, const models::TrainingData& data,
                                           int64_t images, int64_t batch_size,
                                           distributed::Collectives& ranks, inference::Watch& watch) {
  const at::NoGradGuard no_grad;
  const models::Model record = models::make_model(model.config);
  const models::LossFunction losses = record.bind(model.parameter);
  models::ValidationSums sums(record, model.config.model.num_experts,
                              {{.samples = static_cast<uint64_t>(images)}}, batch_size, model.device);
  std::vector<uint64_t> ends;
  for (int64_t b = 0; b < sums.num_batches(); ++b)
    ends.push_back(static_cast<uint64_t>(std::min(images, (b + 1) * batch_size)));
  inference::SharedBatches shared(std::move(ends), ranks, watch);
  while (const auto index = shared.next()) {
    const auto b = static_cast<int64_t>(*index);
    const models::Batch batch = data.validation->read(sums.first_sample(b), sums.size_of(b)).to(model.device);
    sums.add(b, batch, losses(batch, routing));
  }
  if (shared.stopped()) throw Stopped("stopped before the last image; no result is kept");
  return sums.result(ranks);
}

moe::Routing solve_for_images(const inference::DiffusionModel& model, const models::TrainingData& data,
                              const std::vector<double>& targets) {
  const at::NoGradGuard no_grad;
  return models::solve_on_validation(models::make_model(model.config), model.config, targets, model.device,
                                     losses_of(model), data, model.routing);
}

ordered_json to_json(const DiffusionEvaluation& evaluation) {
  const models::ValidationResult& raw = evaluation.raw;
  const moe::ActivationStatistics& activations = raw.activations;
  const bool routed = activations.num_layers() > 0;
  ordered_json json = {{"images", evaluation.images}, {"loss", raw.loss}};
  if (evaluation.ema) json["ema_loss"] = evaluation.ema->loss;
  for (const models::ValidationGroup& group : raw.groups) json["loss_" + group.name] = group.loss;
  if (!routed) return json;
  json["active_experts"] = activations.summary().mean;
  json["active_experts_std"] = activations.summary().deviation;
  json["token_mean_std"] = activations.token_mean_deviation();
  if (evaluation.ema) json["ema_active_experts"] = evaluation.ema->activations.summary().mean;
  for (const models::ValidationGroup& group : raw.groups)
    json["active_experts_" + group.name] = mean(group.active_experts_L);
  ordered_json& layers = json["active_experts_by_layer"] = {{"all", experts_of_layers(activations)}};
  for (const models::ValidationGroup& group : raw.groups) layers[group.name] = group.active_experts_L;
  return json;
}

std::string format_table(const DiffusionEvaluation& evaluation) {
  const models::ValidationResult& raw = evaluation.raw;
  std::string table;
  table += format("images       %ld\n", evaluation.images);
  table += format("loss         %.6f\n", raw.loss);
  if (evaluation.ema) table += format("EMA loss     %.6f\n", evaluation.ema->loss);
  const bool routed = raw.activations.num_layers() > 0;
  if (routed) {
    const moe::ActivationSummary active = raw.activations.summary();
    table += format("experts      %.4f per token (standard deviation %.4f)\n", active.mean, active.deviation);
    if (evaluation.ema)
      table += format("EMA experts  %.4f per token\n", evaluation.ema->activations.summary().mean);
  }
  table += format("\n%-4s %10s%s\n", "t", "loss", routed ? "  experts  by layer" : "");
  for (const models::ValidationGroup& group : raw.groups) {
    table += format("%-4s %10.6f", group.name.c_str(), group.loss);
    if (routed) {
      table += format("  %7.3f ", mean(group.active_experts_L));
      table += format_layers(group.active_experts_L);
    }
    table += "\n";
  }
  if (routed) {
    table += format("%-4s %10.6f  %7.3f ", "all", raw.loss, raw.activations.summary().mean);
    table += format_layers(experts_of_layers(raw.activations)) + "\n";
  }
  return table;
}

namespace {

// Produces the tensors of the file batch by batch, while the file is written.
class DumpedImages {
 public:
  DumpedImages(const models::TrainingData& data, int64_t images, int64_t batch_size)
      : data_(data), images_(images), batch_size_(batch_size) {}

  models::Batch batch(int64_t first) const {
    return data_.validation->read(static_cast<uint64_t>(first), std::min(batch_size_, images_ - first));
  }

  template <class TensorOfBatch>
  TensorSource source(const std::string& name, const std::string& dtype, std::vector<int64_t> shape,
                      const TensorOfBatch& tensor_of) const {
    shape.insert(shape.begin(), images_);
    uint64_t size = dtype == "I64" ? sizeof(int64_t) : sizeof(float);
    for (const int64_t side : shape) size *= static_cast<uint64_t>(side);
    const auto read = [this, tensor_of](uint64_t /*begin*/, uint64_t /*count*/, const TakeBytes& take) {
      for (int64_t first = 0; first < images_; first += batch_size_)
        ops::copy_to_bytes(tensor_of(batch(first)).contiguous(), take);
    };
    return {name, dtype, std::move(shape), size, read};
  }

 private:
  const models::TrainingData& data_;
  int64_t images_, batch_size_;
};

auto named(const char* name) {
  return [name](const models::Batch& batch) { return batch.tensor(name); };
}

}  // namespace

void dump_predictions(const inference::DiffusionModel& model, const models::TrainingData& data,
                      int64_t images, int64_t batch_size, const std::filesystem::path& path,
                      inference::Watch& watch) {
  const at::NoGradGuard no_grad;
  const config::ModelConfig& config = model.config.model;
  const config::Objective objective = model.config.diffusion.objective;
  const DumpedImages dumped(data, images, batch_size);
  const auto predicted = [&](const models::Batch& on_host) {
    if (watch.stop_requested()) throw Stopped("stopped before the last image was dumped; no file is written");
    const models::Batch batch = on_host.to(model.device);
    const at::Tensor& t_B = batch.tensor("t");
    const models::Noised noised =
        models::add_noise(objective, batch.tensor("x0"), batch.tensor("noise"), t_B);
    const at::Tensor output_BCHW =
        models::predict(model.model, noised.x_BCHW, t_B, models::condition_of(batch), model.routing)
            .output_BCHW;
    watch.update(batch.position + static_cast<uint64_t>(t_B.size(0)));
    return output_BCHW;
  };
  const std::vector<int64_t> image = {config.channels, config.image_size, config.image_size};
  std::vector<TensorSource> tensors = {
      dumped.source("prediction", "F32", image, predicted), dumped.source("x0", "F32", image, named("x0")),
      dumped.source("noise", "F32", image, named("noise")), dumped.source("t", "F32", {}, named("t"))};
  if (config.num_classes > 0)
    tensors.push_back(dumped.source("condition", "I64", {}, named("class")));
  else if (config.text_length > 0)
    tensors.push_back(
        dumped.source("condition", "F32", {config.text_length, config.text_size}, named("text")));
  write_file_atomically(path, [&](OutputFile& file) {
    write_safetensors(file, tensors, {{"objective", enum_name(objective)}});
  });
}

}  // namespace dtopp::eval
