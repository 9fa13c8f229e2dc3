#include "dtopp/eval/evaluation.h"

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

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::vector<double> experts_of_layers(const moe::ActivationStatistics& activations) {
  std::vector<double> means;
  for (int64_t layer = 0; layer < activations.num_layers(); ++layer)
    means.push_back(activations.summary(layer).mean);
  return means;
}

auto named(const char* name) {
  return [name](const models::Batch& batch) { return batch.tensor(name); };
}

}  // namespace

models::TrainingData open_evaluation_images(const checkpoint::Checkpoint& checkpoint,
                                            const config::RunConfig& config, const fs::path& folder) {
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
  const models::Model record = models::make_model(model.config);
  return models::solve_on_validation(record, model.config, targets, model.device,
                                     record.bind(model.parameter), data, model.routing);
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
  const auto add_row = [&](const char* name, double loss, double experts,
                           const std::vector<double>& experts_L) {
    table += format("%-4s %10.6f", name, loss);
    if (routed) table += format("  %7.3f ", experts);
    for (const double one : experts_L) table += format(" %7.3f", one);
    table += "\n";
  };
  for (const models::ValidationGroup& group : raw.groups)
    add_row(group.name.c_str(), group.loss, mean(group.active_experts_L), group.active_experts_L);
  if (routed) add_row("all", raw.loss, raw.activations.summary().mean, experts_of_layers(raw.activations));
  return table;
}

void dump_predictions(const inference::DiffusionModel& model, const models::TrainingData& data,
                      int64_t images, int64_t batch_size, const fs::path& path, inference::Watch& watch) {
  const at::NoGradGuard no_grad;
  const config::ModelConfig& config = model.config.model;
  const config::Objective objective = model.config.diffusion.objective;
  // A tensor that is produced batch by batch, while the file is written.
  const auto source = [&](const char* name, const char* dtype, std::vector<int64_t> shape,
                          const auto& tensor_of) {
    shape.insert(shape.begin(), images);
    uint64_t size = dtype == std::string_view("I64") ? sizeof(int64_t) : sizeof(float);
    for (const int64_t side : shape) size *= static_cast<uint64_t>(side);
    const auto read = [&, tensor_of](uint64_t /*begin*/, uint64_t /*count*/, const TakeBytes& take) {
      for (int64_t first = 0; first < images; first += batch_size) {
        const int64_t count = std::min(batch_size, images - first);
        ops::copy_to_bytes(tensor_of(data.validation->read(static_cast<uint64_t>(first), count)).contiguous(),
                           take);
      }
    };
    return TensorSource{name, dtype, std::move(shape), size, read};
  };
  const auto predicted = [&](const models::Batch& on_host) {
    if (watch.stop_requested()) throw Stopped("stopped before the last image was dumped; no file is written");
    const models::Batch batch = on_host.to(model.device);
    const Tensor& t_B = batch.tensor("t");
    const models::Noised noised =
        models::add_noise(objective, batch.tensor("x0"), batch.tensor("noise"), t_B);
    const Tensor output_BCHW =
        models::predict(model.model, noised.x_BCHW, t_B, models::condition_of(batch), model.routing)
            .output_BCHW;
    watch.update(batch.position + static_cast<uint64_t>(t_B.size(0)));
    return output_BCHW;
  };
  const std::vector<int64_t> image = {config.channels, config.image_size, config.image_size};
  std::vector<TensorSource> tensors = {
      source("prediction", "F32", image, predicted), source("x0", "F32", image, named("x0")),
      source("noise", "F32", image, named("noise")), source("t", "F32", {}, named("t"))};
  if (config.num_classes > 0)
    tensors.push_back(source("condition", "I64", {}, named("class")));
  else if (config.text_length > 0)
    tensors.push_back(source("condition", "F32", {config.text_length, config.text_size}, named("text")));
  write_file_atomically(path, [&](OutputFile& file) {
    write_safetensors(file, tensors, {{"objective", enum_name(objective)}});
  });
}

}  // namespace dtopp::eval
