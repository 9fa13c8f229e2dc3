#include "dtopp/models/diffusion_transformer/image_batches.h"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "dtopp/base/random.h"
#include "dtopp/data/images/image_data.h"
#include "dtopp/models/diffusion_transformer/objective.h"

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

}  // namespace dtopp::models
