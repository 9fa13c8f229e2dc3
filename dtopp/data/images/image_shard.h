// Reads the samples of one safetensors file in a folder of prepared images.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "dtopp/base/safetensors.h"
#include "dtopp/data/images/image_facts.h"

namespace dtopp::data {

class ImageShard {
 public:
  // Opens the file. Throws DataError if a tensor that `facts` require is missing, or if dtypes or shapes do
  // not match. `facts` must outlive the shard.
  ImageShard(const std::filesystem::path& path, const ImageFacts& facts);

  uint64_t images() const { return images_; }
  // As in ImageData, which checks kind and sizes first. Precondition: index < images().
  int64_t label(uint64_t index) const;
  void pixels(uint64_t index, std::span<uint8_t> out) const;
  void latent(uint64_t index, bool flipped, std::span<float> out) const;
  int64_t text(uint64_t index, std::span<float> out) const;

 private:
  using Bytes = std::span<const std::byte>;

  const TensorView& tensor(const std::string& name, const std::string& dtype) const;
  // Returns a tensor with one row per sample; `rest` are the other dimensions.
  Bytes of_samples(const std::string& name, const std::string& dtype, const std::vector<int64_t>& rest);
  // Returns a tensor of offsets: the beginning of each sample's rows, and the end of the last one's.
  Bytes offsets_of(const std::string& name);
  // Returns a sample's rows, each of `size` bytes.
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

}  // namespace dtopp::data
