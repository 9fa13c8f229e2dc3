// One safetensors file of a folder of prepared images.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "dtopp/base/safetensors.h"
#include "dtopp/data/images/image_facts.h"

namespace dtopp {

class ImageShard {
 public:
  // DataError unless its tensors are those of a folder of `facts`, with shapes that go together. `facts` must
  // outlive it.
  ImageShard(const std::filesystem::path& path, const ImageFacts& facts);

  uint64_t images() const { return images_; }
  // As in ImageData, of a sample below images().
  int64_t label(uint64_t index) const;
  void pixels(uint64_t index, std::span<uint8_t> out) const;
  void latent(uint64_t index, bool flipped, std::span<float> out) const;
  int64_t text(uint64_t index, std::span<float> out) const;

 private:
  using Bytes = std::span<const std::byte>;

  const TensorView& tensor(const std::string& name, const std::string& dtype) const;
  // The tensor's first dimension is the number of samples, the others are `rest`.
  Bytes of_samples(const std::string& name, const std::string& dtype, const std::vector<int64_t>& rest);
  // Where each sample begins in a tensor of pieces, and where the last one ends.
  Bytes offsets_of(const std::string& name);
  // The rows of `size` bytes that belong to a sample.
  Bytes piece(Bytes rows, Bytes offsets, uint64_t size, uint64_t index) const;
  void count(uint64_t images);
  [[noreturn]] void fail(const std::string& cause) const;
  [[noreturn]] void fail(uint64_t index, const std::string& cause) const;

  const ImageFacts& facts_;
  std::filesystem::path path_;
  SafetensorsFile file_;
  uint64_t images_ = 0;
  bool is_counted_ = false;
  Bytes samples_, flipped_, offsets_, labels_, text_, text_offsets_;
};

}  // namespace dtopp
