// Batches of a diffusion transformer. All that is drawn at random for a sample depends on the seed and the
// sample's position alone.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "dtopp/config/run_config.h"
#include "dtopp/data/files/verified_files.h"
#include "dtopp/models/batch.h"

namespace dtopp {

inline constexpr int64_t kTimestepBuckets = 10;  // of validation

// A picture as the model sees it.
struct TrainingImage {
  std::vector<float> x0_CHW;   // pixels in [-1, 1], or a latent scaled to about unit variance
  int64_t label = 0;           // a class
  std::vector<float> text_LS;  // embeddings of its text, at most text_length of them
};

struct ImageReader {
  uint64_t samples = 0;
  // Sample `index` as it lies in the data; mirrored left to right where `flip`. Called by several threads.
  std::function<TrainingImage(uint64_t index, bool flip)> read;
  // The sample at a position of the training order; none: ImageOrder's.
  std::function<uint64_t(uint64_t position)> order{};
};

// Batches hold "x0" and "noise", f32 [B, C, H, W]; "t", f32 [B]; with model.num_classes "class", int64 [B],
// num_classes where it was dropped; with model.text_length "text", f32 [B, text_length, text_size], zeros
// after a text's end and where it was dropped.
//
// Training: each epoch a fresh permutation of all samples; flip (unless diffusion.flip is off), t, noise and
// whether the condition is dropped are drawn for each position. Validation: the order of the data, neither
// flipped nor dropped, besides "group", int64 [B]: of every ten samples in order each has its t in another
// tenth of the training distribution.
std::function<Batch(uint64_t position, int64_t count)> training_images(const RunConfig& config,
                                                                       ImageReader source);
std::function<Batch(uint64_t position, int64_t count)> validation_images(const RunConfig& config,
                                                                         ImageReader source);

// The prepared images that config.data names.
TrainingData diffusion_transformer_data(const RunConfig& config, Verify verify);

}  // namespace dtopp
