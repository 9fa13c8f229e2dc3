// Reads the samples of one safetensors file in a folder of prepared images.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "dtopp/base/safetensors/safetensors_file.h"
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
  const TensorPlace& tensor(const std::string& name, const std::string& dtype) const;
  // Returns a tensor with one row per sample; `rest` are the other dimensions.
  const TensorPlace* of_samples(const std::string& name, const std::string& dtype,
                                const std::vector<int64_t>& rest);
  // Returns a tensor of offsets: the beginning of each sample's rows, and the end of the last one's.
  const TensorPlace* offsets_of(const std::string& name);
  int64_t integer(const TensorPlace& integers, uint64_t index) const;
  std::vector<std::byte> read(const TensorPlace& tensor, uint64_t offset, uint64_t size) const;
  // Reads a sample's rows, each of `size` bytes.
  std::vector<std::byte> piece(const TensorPlace& rows, const TensorPlace& offsets, uint64_t size,
                               uint64_t index) const;
  void count(uint64_t images);
  [[noreturn]] void fail(const std::string& cause) const;
  [[noreturn]] void fail(uint64_t index, const std::string& cause) const;

  const ImageFacts& facts_;
  std::filesystem::path path_;
  SafetensorsReader file_;
  uint64_t images_ = 0;
  bool is_counted_ = false;
  // Tensors of file_, which keeps their addresses when it is moved; null if the facts name no such tensor.
  const TensorPlace* samples_ = nullptr;
  const TensorPlace* flipped_ = nullptr;
  const TensorPlace* offsets_ = nullptr;
  const TensorPlace* labels_ = nullptr;
  const TensorPlace* text_ = nullptr;
  const TensorPlace* text_offsets_ = nullptr;
};

}  // namespace dtopp::data
