// What a folder of prepared images says about itself: manifest.json when it is complete, progress.json
// before.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "dtopp/base/float_type.h"
#include "dtopp/base/manifest.h"
#include "dtopp/data/files/owned_folder.h"

namespace dtopp {

inline constexpr char kImageDataFormat[] = "dtopp image data 1";           // of manifest.json
inline constexpr char kImageRecordFormat[] = "dtopp image preparation 2";  // of progress.json

// How a sample is stored: U8 [C, H, W]; a JPEG or PNG file; a latent of floating-point numbers [C, H, W].
enum class ImageKind { kPixels, kEncoded, kLatents };

struct ImageShape {
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;

  uint64_t elements() const { return static_cast<uint64_t>(channels * height * width); }
  bool operator==(const ImageShape&) const = default;
};

// Pixels up to this many a side are stored as they are, larger pictures as files.
inline constexpr int64_t kLargestStoredRaw = 64;

// A folder, archive or array that went in.
struct ImageOrigin {
  std::string name;  // without its folder
  uint64_t size = 0;
  std::string xxh3_128;  // of a folder: of the names, sizes and times of its files
  uint64_t images = 0;

  bool same_content(const ImageOrigin& other) const {
    return size == other.size && xxh3_128 == other.xxh3_128;
  }
};

// What decides every byte of the output.
struct ImageJob {
  int64_t size = 0;  // height and width that pictures are brought to; 0: as they are
  int64_t channels = 3;
  std::vector<double> scale, shift;  // of latents; none: 1 and 0
  std::vector<ImageOrigin> origins;
};

// A sample that was left out.
struct SkippedImage {
  std::string name;
  std::string cause;
};

struct ImageFacts {
  ImageJob job;
  ImageKind kind = ImageKind::kPixels;
  ImageShape shape;
  uint64_t images = 0;
  // By label; none: samples have no class.
  std::vector<std::string> classes;
  FloatType latent_type = FloatType::kF32;
  bool has_flipped = false;  // latents of the mirrored pictures are there too
  // Of captions' embeddings, [tokens, text_size] for a sample; 0: there are none.
  int64_t text_size = 0;
  int64_t text_length = 0;  // tokens of the longest
  FloatType text_type = FloatType::kF32;
  std::vector<SkippedImage> skipped;
};

FolderKind image_folder_kind();

nlohmann::ordered_json to_json(const ImageFacts& facts);
// From the `about` of the manifest at `path`; DataError naming `path` and the member that is missing, of a
// wrong type or out of range.
ImageFacts read_image_facts(const Manifest& manifest, const std::filesystem::path& path);

}  // namespace dtopp
