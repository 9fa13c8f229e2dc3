#include "dtopp/models/image_batches.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>

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

class TrainingDraws {
 public:
  TrainingDraws(const config::RunConfig& config, uint64_t images, std::optional<WeightedImages> weighted)
      : config_(config.diffusion),
        order_(images, seed_of(config)),
        weighted_(std::move(weighted)),
        flip_(seed_of(config), "image flip"),
        timestep_(seed_of(config), "timestep"),
        dropped_(seed_of(config), "dropped condition"),
        noise_(seed_of(config), "noise") {}

  Draw operator()(uint64_t position) const {
    return {index_at(position), config_.flip && flip_.uniform(position) < 0.5,
            dropped_.uniform(position) < config_.condition_dropout,
            timestep_at(timestep_.uniform(position), config_), 0};
  }
  const RandomStream& noise() const { return noise_; }

  static uint64_t seed_of(const config::RunConfig& config) {
    return static_cast<uint64_t>(config.training.seed);
  }

 private:
  uint64_t index_at(uint64_t position) const {
    if (!weighted_) return order_(position);
    const data::MixedOrder::Draw draw = (*weighted_->sources)(position);
    return weighted_->first[draw.source] + draw.index;
  }

  config::DiffusionConfig config_;
  data::ImageOrder order_;
  std::optional<WeightedImages> weighted_;
  RandomStream flip_, timestep_, dropped_, noise_;
};

class ValidationDraws {
 public:
  explicit ValidationDraws(const config::RunConfig& config)
      : config_(config.diffusion),
        bucket_(TrainingDraws::seed_of(config), "validation bucket"),
        timestep_(TrainingDraws::seed_of(config), "validation timestep"),
        noise_(TrainingDraws::seed_of(config), "validation noise") {}

  Draw operator()(uint64_t index) const {
    constexpr auto kBuckets = static_cast<uint64_t>(kTimestepBuckets);
    const uint64_t bucket = Permutation(bucket_, index / kBuckets, kBuckets)(index % kBuckets);
    const double share = (static_cast<double>(bucket) + timestep_.uniform(index)) / kBuckets;
    return {index, false, false, timestep_at(share, config_), static_cast<int64_t>(bucket)};
  }
  const RandomStream& noise() const { return noise_; }

 private:
  config::DiffusionConfig config_;
  RandomStream bucket_, timestep_, noise_;
};

// Fills the tensors of a batch sample by sample.
class ImageBatch {
 public:
  ImageBatch(const config::ModelConfig& model, uint64_t position, int64_t count) : model_(model) {
    const std::vector<int64_t> shape = {count, model.channels, model.image_size, model.image_size};
    x0_ = at::empty(shape, at::kFloat);
    noise_ = at::empty(shape, at::kFloat);
    t_ = at::empty({count}, at::kFloat);
    batch_ = {position, {{"x0", x0_}, {"noise", noise_}, {"t", t_}}};
    if (model.num_classes > 0) {
      class_ = at::empty({count}, at::kLong);
      batch_.tensors.emplace_back("class", class_);
    }
    if (model.text_length > 0) {
      text_ = at::zeros({count, model.text_length, model.text_size}, at::kFloat);
      batch_.tensors.emplace_back("text", text_);
    }
  }

  void fill(int64_t i, const TrainingImage& sample, const Draw& draw, const RandomStream& noise) {
    const std::span<float> x0 = row(x0_, i);
    if (sample.x0_CHW.size() != x0.size())
      throw std::invalid_argument("an image has " + std::to_string(sample.x0_CHW.size()) +
                                  " values, expected " + std::to_string(x0.size()));
    std::ranges::copy(sample.x0_CHW, x0.begin());
    noise.normals(batch_.position + static_cast<uint64_t>(i), row(noise_, i));
    t_.mutable_data_ptr<float>()[i] = draw.t;
    if (class_.defined())
      class_.mutable_data_ptr<int64_t>()[i] = draw.dropped ? model_.num_classes : sample.label;
    if (text_.defined() && !draw.dropped) {
      if (sample.text_LS.size() > row(text_, i).size())
        throw std::invalid_argument("a text is longer than model.text_length");
      std::ranges::copy(sample.text_LS, row(text_, i).begin());
    }
  }

  Batch take() { return std::move(batch_); }

 private:
  static std::span<float> row(const at::Tensor& values, int64_t i) {
    const int64_t size = values.stride(0);
    return {values.mutable_data_ptr<float>() + i * size, static_cast<size_t>(size)};
  }

  const config::ModelConfig& model_;
  Batch batch_;
  at::Tensor x0_, noise_, t_, class_, text_;
};

template <class Draws>
class ImageDataset : public Dataset {
 public:
  ImageDataset(const config::RunConfig& config, std::shared_ptr<const ImageReader> images, Draws draws)
      : model_(config.model), images_(std::move(images)), draws_(std::move(draws)) {}

  Batch read(uint64_t position, int64_t count) const override {
    ImageBatch batch(model_, position, count);
    const at::Tensor group_B = at::empty({count}, at::kLong);
    auto* group = group_B.mutable_data_ptr<int64_t>();
    at::parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const Draw draw = draws_(position + static_cast<uint64_t>(i));
        batch.fill(i, images_->read(draw.index, draw.flip), draw, draws_.noise());
        group[i] = draw.group;
      }
    });
    Batch filled = batch.take();
    if (std::is_same_v<Draws, ValidationDraws>) filled.tensors.emplace_back("group", group_B);
    return filled;
  }
  std::string describe(uint64_t position) const override {
    return "image " + std::to_string(draws_(position).index) + " of the training data";
  }

 private:
  config::ModelConfig model_;
  std::shared_ptr<const ImageReader> images_;
  Draws draws_;
};

}  // namespace

std::shared_ptr<const Dataset> training_images(const config::RunConfig& config,
                                               std::shared_ptr<const ImageReader> images,
                                               std::optional<WeightedImages> weighted) {
  TrainingDraws draws(config, images->size(), std::move(weighted));
  return std::make_shared<ImageDataset<TrainingDraws>>(config, std::move(images), std::move(draws));
}

std::shared_ptr<const Dataset> validation_images(const config::RunConfig& config,
                                                 std::shared_ptr<const ImageReader> images) {
  return std::make_shared<ImageDataset<ValidationDraws>>(config, std::move(images), ValidationDraws(config));
}

namespace {

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
  require_fits(data->layout(), joined(paths, ", "), model);
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
  data.training_hashes.emplace_back(joined(folders, ", "), train->content_hash());
  std::optional<WeightedImages> weighted;
  if (config.data.is_weighted()) {
    weighted = weighted_images(config, *train);
    data.sources = weighted->sources;
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
