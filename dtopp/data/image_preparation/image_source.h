// Where pictures and latents come from: folders, tars, arrays.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "dtopp/data/image_preparation/raw_sample.h"
#include "dtopp/data/images/image_facts.h"

namespace dtopp {

class ImageSource {
 public:
  virtual ~ImageSource() = default;
  // The next sample in the source's order, nothing after the last one. Without `load` pictures and arrays may
  // lack their bytes; numbers (.cls) and .json have them. Samples are views of what the source keeps open.
  // DataError naming file and byte where the source itself is damaged.
  virtual std::optional<RawSample> next(bool load) = 0;
};

// A folder; a .tar, .tar.gz, .tgz or .tar.zst; a .safetensors or .npy file. DataError for what is missing,
// UsageError for another name.
std::unique_ptr<ImageSource> open_images(const std::filesystem::path& path);

// What tells the source from another one; `images` stays 0. Reads a file through, of a folder the list alone.
ImageOrigin describe_origin(const std::filesystem::path& path);

struct ImageScan {
  uint64_t samples = 0;
  std::set<std::string> folders;  // that samples lie in
  bool has_numbers = false;       // classes are numbers
};

// Looks through all samples without decoding any.
ImageScan scan_images(const std::filesystem::path& path);

// The class as a number that a .cls holds, or a .json under "label" (-1 where it has none). DataError with
// the cause alone for what is no class.
int64_t parse_class_number(const std::string& text);
int64_t parse_json_label(const std::string& text);

// Classes are numbered below this.
inline constexpr int64_t kMaxClasses = 100'000;

// One for each kind of source.
std::unique_ptr<ImageSource> open_image_folder(const std::filesystem::path& path);
ImageOrigin describe_image_folder(const std::filesystem::path& path);
std::unique_ptr<ImageSource> open_image_tar(const std::filesystem::path& path);
std::unique_ptr<ImageSource> open_image_array(const std::filesystem::path& path);

}  // namespace dtopp
