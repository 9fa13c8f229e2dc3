#include <algorithm>
#include <memory>
#include <numeric>

#include "dtopp/base/errors.h"
#include "dtopp/data/images/image_data.h"
#include "dtopp/models/diffusion_transformer/diffusion_transformer.h"
#include "dtopp/models/diffusion_transformer/image_batches.h"
#include "dtopp/models/held_out_sources.h"
#include "dtopp/models/mixed_sources.h"

namespace dtopp::models {
namespace {

std::string joined(const std::vector<std::string>& paths) {
  std::string text;
  for (const std::string& path : paths) text.append(text.empty() ? "" : ", ").append(path);
  return text;
}

std::string describe(const data::ImageShape& shape) {
  return std::to_string(shape.channels) + " x " + std::to_string(shape.height) + " x " +
         std::to_string(shape.width);
}

void require_fits(const data::ImageLayout& layout, const std::string& name,
                  const config::ModelConfig& model) {
  const data::ImageShape wanted{model.channels, model.image_size, model.image_size};
  if (layout.shape != wanted)
    throw UsageError(name + " holds samples of " + describe(layout.shape) + ", but the model takes " +
                     describe(wanted) + "; set model.channels and model.image_size to those of the data");
  if (model.num_classes > 0 && layout.classes.empty())
    throw UsageError(name + " has no classes; set model.num_classes to 0");
  if (model.num_classes > 0 && static_cast<int64_t>(layout.classes.size()) > model.num_classes)
    throw UsageError(name + " has " + std::to_string(layout.classes.size()) +
                     " classes, more than model.num_classes " + std::to_string(model.num_classes));
  if (model.text_length == 0) return;
  if (layout.text_size != model.text_size)
    throw UsageError(name + " has text embeddings of size " + std::to_string(layout.text_size) +
                     ", not model.text_size " + std::to_string(model.text_size));
  if (layout.text_length > model.text_length)
    throw UsageError(name + " has texts of up to " + std::to_string(layout.text_length) +
                     " embeddings, more than model.text_length " + std::to_string(model.text_length));
}

std::vector<float> read_pixels(const data::ImageData& data, uint64_t index, bool flip) {
  const data::ImageShape& shape = data.layout().shape;
  std::vector<uint8_t> levels(shape.elements());
  data.pixels(index, levels);
  const auto width = static_cast<size_t>(shape.width);
  if (flip) {
    for (size_t row = 0; row < levels.size(); row += width)
      std::reverse(levels.begin() + static_cast<std::ptrdiff_t>(row),
                   levels.begin() + static_cast<std::ptrdiff_t>(row + width));
  }
  std::vector<float> x0(levels.size());
  std::ranges::transform(levels, x0.begin(),
                         [](uint8_t level) { return static_cast<float>(level) / 127.5F - 1; });
  return x0;
}

// Without a latent of the mirrored image, returns the image's own: a mirrored latent belongs to no image.
std::vector<float> read_latent(const data::ImageData& data, uint64_t index, bool flip) {
  const data::ImageLayout& layout = data.layout();
  std::vector<float> x0(layout.shape.elements());
  data.latent(index, flip && layout.has_flipped, x0);
  const size_t plane = x0.size() / static_cast<size_t>(layout.shape.channels);
  for (size_t i = 0; i < x0.size(); ++i) {
    const auto of_channel = [&](const std::vector<double>& values) {
      return values.size() == 1 ? values[0] : values.at(i / plane);
    };
    x0[i] = static_cast<float>((x0[i] - of_channel(layout.shift)) * of_channel(layout.scale));
  }
  return x0;
}

class PreparedImages : public ImageReader {
 public:
  PreparedImages(std::shared_ptr<const data::ImageData> data, const config::ModelConfig& model)
      : data_(std::move(data)), has_text_(model.text_length > 0) {}

  uint64_t size() const override { return data_->size(); }
  TrainingImage read(uint64_t index, bool flip) const override {
    const data::ImageLayout& layout = data_->layout();
    TrainingImage image;
    image.x0_CHW = layout.is_latent ? read_latent(*data_, index, flip) : read_pixels(*data_, index, flip);
    image.label = data_->label(index);
    if (!has_text_) return image;
    image.text_LS.resize(static_cast<size_t>(layout.text_length * layout.text_size));
    const int64_t rows = data_->text(index, image.text_LS);
    image.text_LS.resize(static_cast<size_t>(rows * layout.text_size));
    return image;
  }

 private:
  std::shared_ptr<const data::ImageData> data_;
  bool has_text_;
};

std::shared_ptr<const data::ImageData> open_images(const std::vector<std::string>& paths,
                                                   const config::ModelConfig& model, data::Verify verify) {
  auto data =
      std::make_shared<const data::ImageData>(data::ImageData::open({paths.begin(), paths.end()}, verify));
  require_fits(data->layout(), joined(paths), model);
  return data;
}

WeightedImages weighted_images(const config::RunConfig& config, const data::ImageData& images) {
  std::vector<uint64_t> sizes = images.folder_sizes(), first(sizes.size());
  std::exclusive_scan(sizes.begin(), sizes.end(), first.begin(), uint64_t{0});
  return {std::make_shared<const MixedSources>(config, std::move(sizes)), std::move(first)};
}

}  // namespace

TrainingData diffusion_transformer_data(const config::RunConfig& config, data::Verify verify) {
  TrainingData data;
  const std::vector<std::string> folders = config::paths_of(config.data.train);
  const auto train = open_images(folders, config.model, verify);
  data.images_json = data::format_image_layout(train->layout());
  data.training_hashes.emplace_back(joined(folders), train->content_hash());
  std::optional<WeightedImages> weighted;
  if (config.data.is_weighted()) {
    weighted = weighted_images(config, *train);
    data.sources = weighted->sources;
  }
  data.training = training_images(config, std::make_shared<PreparedImages>(train, config.model), weighted);
  if (config.data.validation.empty()) return data;
  const std::vector<std::string> held_out = config::paths_of(config.data.validation);
  const auto validation = open_images(held_out, config.model, verify);
  data::require_alike(train->layout(), joined(folders), validation->layout(), joined(held_out));
  data.validation_hashes.emplace_back(joined(held_out), validation->content_hash());
  data.validation_samples = validation->size();
  data.validation_sources = held_out_sources(config.data, validation->folder_sizes());
  data.validation = validation_images(config, std::make_shared<PreparedImages>(validation, config.model));
  return data;
}

}  // namespace dtopp::models
