// Prepared images (`dtopp prepare images`), read by index from any thread.
//
// One or several folders, laid end to end; sample i is the same whatever else is read. Folders are memory
// maps: what a sample needs is read when it is asked for.
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

namespace dtopp {

// What all samples have in common.
struct ImageLayout {
  bool is_latent = false;            // latents, else pixels
  ImageShape shape;                  // [C, H, W] of each sample
  std::vector<std::string> classes;  // by label; none: samples have no class
  bool has_flipped = false;          // latents of the mirrored pictures are there too
  int64_t text_size = 0;             // of a caption's embeddings [tokens, text_size]; 0: there are none
  int64_t text_length = 0;           // tokens of the longest
  // What a model is to see of a latent: (latent - shift) * scale; one number, or one a channel.
  std::vector<double> scale{1.0}, shift{0.0};
};

class ImageData {
 public:
  // DataError naming the file that is missing, damaged, unfinished or not what its manifest says; UsageError
  // where folders do not go together.
  static ImageData open(const std::vector<std::filesystem::path>& folders, Verify verify = Verify::kChanged);
  ImageData(ImageData&&) noexcept;
  ~ImageData();

  uint64_t size() const;                       // samples
  std::vector<uint64_t> folder_sizes() const;  // of each folder
  const ImageLayout& layout() const;
  // Of all folders' contents, wherever they lie.
  const std::string& content_hash() const;

  // Of sample `index` < size(); std::out_of_range beyond. DataError naming file and sample of what is
  // damaged. The class, from 0; -1 where samples have none.
  int64_t label(uint64_t index) const;
  // Pixels [C, H, W]; decodes what is stored as a JPEG or PNG file. std::invalid_argument for another
  // size than shape.elements(), or where samples are latents.
  void pixels(uint64_t index, std::span<uint8_t> out) const;
  // The latent [C, H, W] as it was given, without scale and shift; `flipped`: of the mirrored picture.
  void latent(uint64_t index, bool flipped, std::span<float> out) const;
  // The caption's embeddings, row after row, into the beginning of `out` (room for text_length * text_size);
  // returns how many rows. 0 where there is no text.
  int64_t text(uint64_t index, std::span<float> out) const;

 private:
  struct Impl;
  explicit ImageData(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// UsageError naming both and the difference unless `other` has samples of the same layout: for what is
// trained on and what it is validated on. Caption lengths may differ.
void require_alike(const ImageLayout& layout, const std::string& name, const ImageLayout& other,
                   const std::string& other_name);

// Training order: position i belongs to epoch i / images, a fresh permutation of all samples each. It depends
// on (seed, i) alone.
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

}  // namespace dtopp
