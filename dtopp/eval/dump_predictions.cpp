#include <algorithm>

#include "dtopp/base/format.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/safetensors.h"
#include "dtopp/config/config.h"
#include "dtopp/eval/evaluation.h"
#include "dtopp/models/diffusion_transformer.h"
#include "dtopp/ops/core/host_copy.h"

namespace dtopp::eval {
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
