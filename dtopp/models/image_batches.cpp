#include "dtopp/models/image_batches.h"

#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"
#include "dtopp/base/random.h"
#include "dtopp/data/images/image_data.h"
#include "dtopp/models/diffusion_transformer.h"

namespace dtopp::models {
namespace {

// The random values of a sample.
struct Draw {
  uint64_t index = 0;  // in the data
  bool flip = false, dropped = false;
  float t = 0;
  int64_t group = 0;
};

uint64_t seed_of(const config::RunConfig& config) { return static_cast<uint64_t>(config.training.seed); }

class ImageDataset : public Dataset {
 public:
  // `grouped`: batches have "group".
  ImageDataset(const config::RunConfig& config, std::shared_ptr<const ImageReader> images,
               std::string_view noise, bool grouped)
      : config_(config), images_(std::move(images)), noise_(seed_of(config), noise), grouped_(grouped) {}

  Batch read(uint64_t position, int64_t count) const override {
    const config::ModelConfig& model = config_.model;
    const std::vector<int64_t> shape = {count, model.channels, model.image_size, model.image_size};
    const Tensor x0 = at::empty(shape, at::kFloat), noise = at::empty(shape, at::kFloat);
    const Tensor t_B = at::empty({count}, at::kFloat);
    const Tensor class_B = at::empty({count}, at::kLong), group_B = at::empty({count}, at::kLong);
    const Tensor text = at::zeros({count, model.text_length, model.text_size}, at::kFloat);
    at::parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const uint64_t at = position + static_cast<uint64_t>(i);
        const Draw draw = this->draw(at);
        const TrainingImage sample = images_->read(draw.index, draw.flip);
        if (sample.x0_CHW.size() != row(x0, i).size())
          throw std::invalid_argument("an image has " + std::to_string(sample.x0_CHW.size()) +
                                      " values, expected " + std::to_string(row(x0, i).size()));
        std::ranges::copy(sample.x0_CHW, row(x0, i).begin());
        noise_.normals(at, row(noise, i));
        t_B.mutable_data_ptr<float>()[i] = draw.t;
        class_B.mutable_data_ptr<int64_t>()[i] = draw.dropped ? model.num_classes : sample.label;
        group_B.mutable_data_ptr<int64_t>()[i] = draw.group;
        if (model.text_length == 0 || draw.dropped) continue;
        if (sample.text_LS.size() > row(text, i).size())
          throw std::invalid_argument("a text is longer than model.text_length");
        std::ranges::copy(sample.text_LS, row(text, i).begin());
      }
    });
    Batch batch{position, {{"x0", x0}, {"noise", noise}, {"t", t_B}}};
    if (model.num_classes > 0) batch.tensors.emplace_back("class", class_B);
    if (model.text_length > 0) batch.tensors.emplace_back("text", text);
    if (grouped_) batch.tensors.emplace_back("group", group_B);
    return batch;
  }
  std::string describe(uint64_t position) const override {
    return "image " + std::to_string(draw(position).index) + " of the training data";
  }

 protected:
  virtual Draw draw(uint64_t position) const = 0;
  const config::DiffusionConfig& diffusion() const { return config_.diffusion; }

 private:
  static std::span<float> row(const Tensor& values, int64_t i) {
    const int64_t size = values.stride(0);
    return {values.mutable_data_ptr<float>() + i * size, static_cast<size_t>(size)};
  }

  config::RunConfig config_;
  std::shared_ptr<const ImageReader> images_;
  RandomStream noise_;
  bool grouped_;
};

class TrainingImages final : public ImageDataset {
 public:
  TrainingImages(const config::RunConfig& config, const std::shared_ptr<const ImageReader>& images,
                 std::optional<WeightedImages> weighted)
      : ImageDataset(config, images, "noise", /*grouped=*/false),
        order_(images->size(), seed_of(config)),
        weighted_(std::move(weighted)),
        flip_(seed_of(config), "image flip"),
        timestep_(seed_of(config), "timestep"),
        dropped_(seed_of(config), "dropped condition") {}

 private:
  Draw draw(uint64_t position) const override {
    return {index_at(position), diffusion().flip && flip_.uniform(position) < 0.5,
            dropped_.uniform(position) < diffusion().condition_dropout,
            timestep_at(timestep_.uniform(position), diffusion())};
  }
  uint64_t index_at(uint64_t position) const {
    if (!weighted_) return order_(position);
    const data::MixedOrder::Draw draw = (*weighted_->sources)(position);
    return weighted_->first[draw.source] + draw.index;
  }

  data::ImageOrder order_;
  std::optional<WeightedImages> weighted_;
  RandomStream flip_, timestep_, dropped_;
};

class ValidationImages final : public ImageDataset {
 public:
  ValidationImages(const config::RunConfig& config, const std::shared_ptr<const ImageReader>& images)
      : ImageDataset(config, images, "validation noise", /*grouped=*/true),
        bucket_(seed_of(config), "validation bucket"),
        timestep_(seed_of(config), "validation timestep") {}

 private:
  Draw draw(uint64_t index) const override {
    constexpr auto kBuckets = static_cast<uint64_t>(kTimestepBuckets);
    const uint64_t bucket = Permutation(bucket_, index / kBuckets, kBuckets)(index % kBuckets);
    const double share = (static_cast<double>(bucket) + timestep_.uniform(index)) / kBuckets;
    return {index, false, false, timestep_at(share, diffusion()), static_cast<int64_t>(bucket)};
  }

  RandomStream bucket_, timestep_;
};

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
  if (model.num_classes > 0 && std::ssize(layout.classes) > model.num_classes)
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
  if (flip)
    for (auto row = levels.begin(); row < levels.end(); row += shape.width)
      std::reverse(row, row + shape.width);
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
  require_fits(data->layout(), joined(paths, ", "), model);
  return data;
}

}  // namespace

std::shared_ptr<const Dataset> training_images(const config::RunConfig& config,
                                               const std::shared_ptr<const ImageReader>& images,
                                               std::optional<WeightedImages> weighted) {
  return std::make_shared<TrainingImages>(config, images, std::move(weighted));
}

std::shared_ptr<const Dataset> validation_images(const config::RunConfig& config,
                                                 const std::shared_ptr<const ImageReader>& images) {
  return std::make_shared<ValidationImages>(config, images);
}

TrainingData diffusion_transformer_data(const config::RunConfig& config, data::Verify verify) {
  TrainingData data;
  const std::vector<std::string> folders = config::paths_of(config.data.train);
  const auto train = open_images(folders, config.model, verify);
  data.images_json = data::format_image_layout(train->layout());
  data.training_hashes.emplace_back(joined(folders, ", "), train->content_hash());
  std::optional<WeightedImages> weighted;
  if (config.data.is_weighted()) {
    std::vector<uint64_t> sizes = train->folder_sizes(), first(sizes.size());
    std::exclusive_scan(sizes.begin(), sizes.end(), first.begin(), uint64_t{0});
    data.sources = std::make_shared<const MixedSources>(config, std::move(sizes));
    weighted = {data.sources, std::move(first)};
  }
  data.training = training_images(config, std::make_shared<PreparedImages>(train, config.model), weighted);
  if (config.data.validation.empty()) return data;
  const std::vector<std::string> held_out = config::paths_of(config.data.validation);
  const auto validation = open_images(held_out, config.model, verify);
  data::require_alike(train->layout(), joined(folders, ", "), validation->layout(), joined(held_out, ", "));
  data.validation_hashes.emplace_back(joined(held_out, ", "), validation->content_hash());
  data.validation_samples = validation->size();
  data.validation_sources = held_out_sources(config.data, validation->folder_sizes());
  data.validation = validation_images(config, std::make_shared<PreparedImages>(validation, config.model));
  return data;
}

}  // namespace dtopp::models
