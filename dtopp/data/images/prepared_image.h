// Converts a raw sample to the bytes that are stored, and checks that all samples of a folder agree: the
// first sample determines kind, shape and types of all. The workers of prepare_images convert in parallel.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dtopp/data/images/image_facts.h"
#include "dtopp/data/images/image_source.h"

namespace dtopp::data {
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
