// Pictures and folders of pictures for the tests of prepared images.
#pragma once

#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "dtopp/base/files.h"
#include "dtopp/base/safetensors.h"
#include "dtopp/data/images/picture.h"
#include "dtopp/data/images/prepare_images.h"
#include "tests/base/scratch_directory.h"

namespace dtopp::data {

inline Picture random_picture(unsigned seed, int height, int width, int channels = 3) {
  std::mt19937 random(seed);
  Picture picture(height, width, channels);
  for (uint8_t& level : picture.pixels) level = static_cast<uint8_t>(random());
  return picture;
}

inline void write_text(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::create_directories(path.parent_path());
  OutputFile file(path);
  file.write(text);
  file.sync_and_close();
}

inline std::map<std::string, std::string> contents_of(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files[entry.path().filename().string()] = read_file(entry.path());
  return files;
}

// Prepares the images, or stops after `samples` samples. Returns the facts.
inline ImageFacts prepare_images(const PrepareImagesOptions& options, int samples = 1 << 30) {
  ImagePreparation preparation(options);
  while (preparation.next())
    if (--samples == 0) preparation.stop();
  return preparation.facts();
}

template <class Number>
TensorSource tensor(const std::string& name, const std::string& dtype, std::vector<int64_t> shape,
                    const std::vector<Number>& values) {
  return {name, dtype, std::move(shape), std::as_bytes(std::span(values))};
}

// Twelve latents [2, 2, 3] with mirrored copies, labels, and captions of 2 tokens of 3 numbers. Every number
// encodes its position.
struct LatentArrays {
  static constexpr int64_t kCount = 12;
  std::vector<float> latents, flipped, text;
  std::vector<int64_t> labels;

  LatentArrays() {
    for (int i = 0; i < kCount; ++i) {
      labels.push_back(i % 4);
      for (int j = 0; j < 12; ++j) {
        latents.push_back(static_cast<float>(100 * i + j));
        flipped.push_back(static_cast<float>(-100 * i - j));
      }
      for (int j = 0; j < 6; ++j) text.push_back(static_cast<float>(i) + 0.125F * static_cast<float>(j));
    }
  }
  void write(const std::filesystem::path& path) const {
    write_safetensors(path, {tensor("labels", "I64", {kCount}, labels),
                             tensor("latents", "F32", {kCount, 2, 2, 3}, latents),
                             tensor("latents_flip", "F32", {kCount, 2, 2, 3}, flipped),
                             tensor("text", "F32", {kCount, 2, 3}, text)});
  }
};

}  // namespace dtopp::data
