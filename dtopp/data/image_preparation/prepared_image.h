// Converts a raw sample to the bytes that are stored. The workers of prepare_images do this in parallel.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "dtopp/data/image_preparation/raw_sample.h"
#include "dtopp/data/images/image_facts.h"

namespace dtopp {

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

}  // namespace dtopp
