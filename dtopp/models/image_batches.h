// Builds the batches of a diffusion transformer. Random values of a sample depend only on the seed and the
// sample's position.
#pragma once

#include "dtopp/config/run_config.h"
#include "dtopp/data/files/verified_files.h"
#include "dtopp/models/batch.h"

namespace dtopp::models {
inline constexpr int64_t kTimestepBuckets = 10;  // validation groups

// An image in the form that the model uses.
struct TrainingImage {
  std::vector<float> x0_CHW;   // pixels in [-1, 1], or a latent scaled to about unit variance
  int64_t label = 0;           // class
  std::vector<float> text_LS;  // embeddings of its text, at most text_length
};

// Images by index. Safe to read from many threads.
class ImageReader {
 public:
  virtual ~ImageReader() = default;
  virtual uint64_t size() const = 0;
  // Reads image `index`, mirrored left to right if `flip`.
  virtual TrainingImage read(uint64_t index, bool flip) const = 0;
};

// Images of several sources, one after another, that are drawn by the weights of their sources.
struct WeightedImages {
  std::shared_ptr<const MixedSources> sources;
  std::vector<uint64_t> first;  // index of each source's first image
};

// A batch holds "x0" and "noise", f32 [B, C, H, W], and "t", f32 [B]. With model.num_classes it holds
// "class", int64 [B], which is num_classes if the condition was dropped. With model.text_length it holds
// "text", f32 [B, text_length, text_size], which is zero after the end of a text and if the condition was
// dropped.
//
// Training permutes all samples anew in each epoch. Flip (unless diffusion.flip is off), t, noise and the
// drop of the condition are drawn per position. Validation uses the order of the data, without flips and
// drops, and adds "group", int64 [B]: each of ten consecutive samples has its t in a different tenth of the
// training distribution.
std::shared_ptr<const Dataset> training_images(const config::RunConfig& config,
                                               const std::shared_ptr<const ImageReader>& images,
                                               std::optional<WeightedImages> weighted = std::nullopt);
std::shared_ptr<const Dataset> validation_images(const config::RunConfig& config,
                                                 const std::shared_ptr<const ImageReader>& images);

// Opens the prepared images of config.data.
TrainingData diffusion_transformer_data(const config::RunConfig& config, data::Verify verify);

}  // namespace dtopp::models
