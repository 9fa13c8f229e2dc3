// Converts the facts about a folder of prepared images to and from JSON.
//
// manifest.json holds them when the folder is complete, progress.json before.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "dtopp/base/manifest.h"
#include "dtopp/base/safetensors.h"
#include "dtopp/data/files/resumable_folder.h"

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
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;

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
  std::string name;
  std::string cause;
};

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

}  // namespace dtopp::data
