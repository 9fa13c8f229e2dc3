// Reads prepared images (the output of `dtopp prepare images`) by index, from any thread.
//
// The samples of one or more folders are concatenated. Reading sample i does not depend on earlier reads.
// The bytes of a sample are read on access.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "dtopp/base/manifest.h"
#include "dtopp/base/random.h"
#include "dtopp/base/safetensors.h"
#include "dtopp/data/files/resumable_folder.h"
#include "dtopp/data/files/verified_files.h"

namespace dtopp::data {

inline constexpr char kImageDataFormat[] = "dtopp image data 1";           // format of manifest.json
inline constexpr char kImageRecordFormat[] = "dtopp image preparation 3";  // format of progress.json
inline constexpr char kStreamPrefix[] = "progress.";  // of the files of an unfinished shard

// The storage of a sample: pixels U8 [C, H, W], a JPEG or PNG file, or a floating-point latent [C, H, W].
enum class ImageKind { kPixels, kEncoded, kLatents };

constexpr auto enum_names(ImageKind) {
  return std::to_array<std::string_view>({"pixels", "encoded", "latents"});
}

struct ImageShape {
  int64_t channels = 0, height = 0, width = 0;

  uint64_t elements() const { return static_cast<uint64_t>(channels * height * width); }
  bool operator==(const ImageShape&) const = default;
};

// Pictures of at most this many pixels per side are stored as pixels, larger ones as JPEG or PNG files.
inline constexpr int64_t kLargestStoredRaw = 64;

// The settings that determine the output, next to the sources.
struct ImageJob {
  int64_t size = 0;      // height and width to which pictures are resized; 0: all must have the same size
  int64_t channels = 3;  // of pictures: 1 or 3
  std::vector<double> scale, shift;  // of latents: one number, or one per channel; empty: 1 and 0
};

// A sample that was skipped.
struct SkippedImage {
  std::string name, cause;
};

// The facts about a folder: in manifest.json when it is complete, in progress.json before.
struct ImageFacts {
  ImageJob job;
  ImageKind kind = ImageKind::kPixels;
  ImageShape shape;
  uint64_t images = 0;
  std::vector<std::string> classes;  // names by label; empty: samples have no class
  FloatType latent_type = FloatType::kF32;
  bool has_flipped = false;  // latents of the mirrored pictures are stored too
  int64_t text_size = 0;     // captions are embeddings [tokens, text_size]; 0: no captions
  int64_t text_length = 0;   // tokens of the longest caption
  FloatType text_type = FloatType::kF32;
  std::vector<SkippedImage> skipped;
};

FolderKind image_folder_kind();

// Converts all facts but the job, which ResumableFolder records.
nlohmann::ordered_json to_json(const ImageFacts& facts);
nlohmann::ordered_json to_json(const ImageJob& job);
// Reads the facts from the `about` object of the manifest at `path`. Throws DataError, naming `path` and the
// key, if a value is missing, has a wrong type or is out of range.
ImageFacts read_image_facts(const Manifest& manifest, const fs::path& path);

// Reads the samples of one safetensors file in a folder of prepared images.
class ImageShard {
 public:
  // Opens the file. Throws DataError if a tensor that `facts` require is missing, or if dtypes or shapes do
  // not match.
  ImageShard(const fs::path& path, std::shared_ptr<const ImageFacts> facts);

  uint64_t images() const { return images_.value(); }
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

  std::shared_ptr<const ImageFacts> facts_;
  fs::path path_;
  SafetensorsReader file_;
  std::optional<uint64_t> images_;
  // Tensors of file_, which keeps their addresses when it is moved; null if the facts name no such tensor.
  const TensorPlace *samples_ = nullptr, *flipped_ = nullptr, *offsets_ = nullptr, *labels_ = nullptr;
  const TensorPlace *text_ = nullptr, *text_offsets_ = nullptr;
};

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
  static ImageData open(const std::vector<fs::path>& folders, Verify verify = Verify::kChanged);

  uint64_t size() const { return first_image_.back(); }                        // number of samples
  const std::vector<uint64_t>& folder_sizes() const { return folder_sizes_; }  // number of samples per folder
  const ImageLayout& layout() const { return layout_; }
  // A hash of the contents of all folders, independent of their paths.
  const std::string& content_hash() const { return content_hash_; }

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
  ImageData() = default;
  // Returns the shard of a sample and the sample's index in the shard.
  std::pair<const ImageShard&, uint64_t> find(uint64_t index) const;

  std::vector<ImageShard> shards_;        // of all folders, in order
  std::vector<uint64_t> first_image_{0};  // index of each shard's first image, then the total
  std::vector<uint64_t> folder_sizes_;
  ImageLayout layout_;
  std::string content_hash_;
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

// Returns a checkpoint's images.json, the layout of the prepared images that a model was trained on. Sampling
// needs the names of the classes, and the scale and shift that turn a model's output into a latent.
// {"kind": "pixels" | "latents", "shape": [C, H, W], "classes": [...], "text_size": 0,
//  "text_length": 0, "scale": [...], "shift": [...]}
std::string format_image_layout(const ImageLayout& layout);

// Parses images.json. Throws DataError, naming `what` (the file) and the key, if a value is missing, has a
// wrong type or is out of range.
ImageLayout parse_image_layout(const std::string& text, const std::string& what);

}  // namespace dtopp::data
