// A sample made ready to be stored: what the workers of a preparation do.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "dtopp/data/image_preparation/raw_sample.h"
#include "dtopp/data/images/image_facts.h"

namespace dtopp {

struct PreparedImage {
  std::string name;
  std::string cause;  // not empty: the sample cannot be used
  ImageKind kind = ImageKind::kPixels;
  ImageShape shape;
  std::string data;     // pixels [C, H, W]; a JPEG or PNG file; a latent
  std::string flipped;  // a latent of the mirrored picture; empty: none
  FloatType latent_type = FloatType::kF32;
  int64_t label = -1;
  std::string text;  // [text_length, text_size] of text_type
  FloatType text_type = FloatType::kF32;
  int64_t text_size = 0;  // 0: there is none
  int64_t text_length = 0;

  uint64_t bytes() const { return data.size() + flipped.size() + text.size(); }
};

// How the samples of all sources get their classes.
struct ClassPlan {
  bool by_number = false;                 // .cls, .json or labels; else folders
  std::map<std::string, int64_t> labels;  // of folders
};

// Never throws for what is wrong with the sample.
PreparedImage prepare_image(RawSample sample, const ImageJob& job, const ClassPlan& plan);

}  // namespace dtopp
