// Converts a raw sample to the bytes that are stored, and checks that all samples of a folder agree: the
// first sample determines kind, shape and types of all. The workers of prepare_images convert in parallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "dtopp/data/images/image_facts.h"
#include "dtopp/data/images/image_source.h"
#include "dtopp/data/images/picture.h"

namespace dtopp::data {

inline constexpr int kWeightBits = 22;  // fractional bits of a weight

// Computes out[i] = the sum over t of weights[t] * rows[t * stride + i], for 0 <= i < count, rounded and
// clipped to eight bits. Precondition: the magnitudes of the weights sum to less than 2.
void sum_weighted_rows(const uint8_t* rows, size_t stride, std::span<const int32_t> weights, uint8_t* out,
                       size_t count);

// Computes out[x * out_stride + y] = in[y * in_stride + x] for y < rows, x < columns.
void transpose(const uint8_t* in, size_t in_stride, size_t rows, size_t columns, uint8_t* out,
               size_t out_stride);

enum class ResizeFilter { kBox, kBicubic };

// The part [top, top + rows) x [left, left + columns) of a resized picture.
struct ResizeWindow {
  int top = 0, rows = 0, left = 0, columns = 0;
};

// Resizes a picture to [height, width] and returns only the part `window` of the result.
//
// The result equals Pillow's Image.resize bit for bit, if Pillow resizes rows first, as it does up to
// Pillow 12. The filter is separable: rows first, then columns, with rounding to eight bits between them.
// Weights have 22 fractional bits.
Picture resize(const Picture& picture, int height, int width, ResizeFilter filter, ResizeWindow window);

// Returns the middle of the picture as size x size, as ADM does with Pillow (Dhariwal and Nichol 2021,
// center_crop_arr). The picture is halved by a box filter while its shorter
// side is at least 2 * size. A bicubic filter then scales the shorter side to `size`, and the longer one is
// cropped.
Picture crop_to_square(Picture picture, int size);

struct PreparedImage {
  std::string name;
  std::string cause;  // if not empty, the reason why the sample is unusable
  ImageKind kind = ImageKind::kPixels;
  ImageShape shape;
  std::string data;     // pixels [C, H, W], a JPEG or PNG file, or a latent
  std::string flipped;  // the latent of the mirrored picture; empty: none
  FloatType latent_type = FloatType::kF32;
  int64_t label = -1;
  std::string text;  // the caption's embeddings, text_type [text_length, text_size]
  FloatType text_type = FloatType::kF32;
  int64_t text_size = 0;  // 0: no text
  int64_t text_length = 0;

  uint64_t bytes() const { return data.size() + flipped.size() + text.size(); }
};

// The assignment of classes to the samples of all sources.
struct ClassPlan {
  bool by_number = false;                 // true: numbers in .cls, .json or labels; false: folders
  std::map<std::string, int64_t> labels;  // label per folder
};

// Prepares a sample. A faulty sample does not throw; it yields a `cause`.
PreparedImage prepare_image(RawSample sample, const ImageJob& job, const ClassPlan& plan);

struct PreparedBatch {
  std::vector<PreparedImage> images;
  bool ends_source = false;
};

// Prepares the samples of a batch. A faulty sample gets a `cause` instead of an exception.
struct BatchPreparer {
  const ImageJob& job;
  const ClassPlan& plan;

  PreparedBatch operator()(ImageBatch batch, int worker) const;
};

// Returns why the sample does not agree with the facts.images samples before it; empty if it agrees. Throws
// UsageError if the job's scale and shift do not fit the first sample.
std::string disagreement(const ImageFacts& facts, const ClassPlan& plan, const PreparedImage& image);

// Updates the facts with a sample that agrees. The first sample sets kind, shape and types; every sample may
// add a class and extend the longest text.
void agree(ImageFacts& facts, const ClassPlan& plan, const PreparedImage& image);

}  // namespace dtopp::data
