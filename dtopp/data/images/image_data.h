// Reads prepared images (the output of `dtopp prepare images`) by index, from any thread.
//
// The samples of one or more folders are concatenated. Reading sample i does not depend on earlier reads.
// The bytes of a sample are read on access.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dtopp/base/random.h"
#include "dtopp/data/files/verified_files.h"
#include "dtopp/data/images/image_facts.h"

namespace dtopp::data {

// The properties that all samples share.
struct ImageLayout {
  bool is_latent = false;            // latents, else pixels
  ImageShape shape;                  // [C, H, W] of each sample
  std::vector<std::string> classes;  // names by label; empty: samples have no class
  bool has_flipped = false;          // latents of the mirrored pictures are stored too
  int64_t text_size = 0;             // captions are embeddings [tokens, text_size]; 0: no captions
  int64_t text_length = 0;           // tokens of the longest caption
  // A model's input is (latent - shift) * scale. One number, or one per channel.
  std::vector<double> scale{1.0}, shift{0.0};
};

class ImageData {
 public:
  // Opens the folders. Throws DataError, naming the file, if a file is missing or damaged, differs from its
  // manifest, or belongs to an unfinished preparation. Throws UsageError if the folders have different
  // layouts.
  static ImageData open(const std::vector<std::filesystem::path>& folders, Verify verify = Verify::kChanged);
  ImageData(ImageData&&) noexcept;
  ~ImageData();

  uint64_t size() const;                       // number of samples
  std::vector<uint64_t> folder_sizes() const;  // number of samples per folder
  const ImageLayout& layout() const;
  // A hash of the contents of all folders, independent of their paths.
  const std::string& content_hash() const;

  // The functions below throw std::out_of_range unless `index` < size(), and DataError, naming file and
  // sample, if the sample is damaged.

  // Returns the class, from 0; -1 if samples have no class.
  int64_t label(uint64_t index) const;
  // Reads the pixels [C, H, W] and decodes a sample that is stored as a JPEG or PNG file. Throws
  // std::invalid_argument if samples are latents or if out.size() is not shape.elements().
  void pixels(uint64_t index, std::span<uint8_t> out) const;
  // Reads the latent [C, H, W] as stored, without scale and shift. `flipped` selects the latent of the
  // mirrored picture. Throws std::invalid_argument if samples are pictures, if there are no flipped latents,
  // or if out.size() is not shape.elements().
  void latent(uint64_t index, bool flipped, std::span<float> out) const;
  // Writes the caption's embeddings, row after row, to the beginning of `out` and returns the number of rows;
  // 0 if there are no captions. Throws std::invalid_argument if `out` has fewer than text_length * text_size
  // elements.
  int64_t text(uint64_t index, std::span<float> out) const;

 private:
  struct Impl;
  explicit ImageData(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Throws UsageError, naming both and the difference, unless both layouts agree. Training and validation data
// must agree. Caption lengths may differ.
void require_alike(const ImageLayout& layout, const std::string& name, const ImageLayout& other,
                   const std::string& other_name);

// The training order. Position i belongs to epoch i / images; each epoch is a fresh permutation of all
// samples. The sample at position i depends only on (seed, i).
class ImageOrder {
 public:
  ImageOrder(uint64_t images, uint64_t seed) : images_(images), order_(seed, "sample order") {}
  uint64_t operator()(uint64_t position) const {
    return Permutation(order_, position / images_, images_)(position % images_);
  }

 private:
  uint64_t images_;
  RandomStream order_;
};

}  // namespace dtopp::data
