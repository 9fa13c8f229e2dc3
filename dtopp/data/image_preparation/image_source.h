// Reads pictures and latents from sources: folders, tar files and array files.
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
  // Returns the next sample in the source's order; nullopt after the last one. Without `load`, pictures and
  // arrays may lack their bytes; .cls and .json members always have them. Samples may be views of a file that
  // the source keeps open. Throws DataError, naming file and byte, if the source itself is damaged.
  virtual std::optional<RawSample> next(bool load) = 0;
};

// Opens a folder, a .tar, .tar.gz, .tgz or .tar.zst file, or a .safetensors or .npy file. Throws DataError if
// the path does not exist or is damaged, and UsageError if the file has another ending.
std::unique_ptr<ImageSource> open_images(const std::filesystem::path& path);

// Returns the identity of a source. Reads a whole file, but only the list of files of a
// folder.
InputSource describe_source(const std::filesystem::path& path);

struct ImageScan {
  uint64_t samples = 0;
  std::set<std::string> folders;  // names of the folders that hold samples
  bool has_numbers = false;       // classes are given as numbers
};

// Scans all samples without decoding any.
ImageScan scan_images(const std::filesystem::path& path);

// Returns the class number in a .cls file, or under "label" in a .json file (-1 without one). Throws
// DataError if it is not a class; the message holds only the cause.
int64_t parse_class_number(const std::string& text);
int64_t parse_json_label(const std::string& text);

// Class numbers lie below this limit.
inline constexpr int64_t kMaxClasses = 100'000;

// Each opens or describes one kind of source.
std::unique_ptr<ImageSource> open_image_folder(const std::filesystem::path& path);
InputSource describe_image_folder(const std::filesystem::path& path);
std::unique_ptr<ImageSource> open_image_tar(const std::filesystem::path& path);
std::unique_ptr<ImageSource> open_image_array(const std::filesystem::path& path);

}  // namespace dtopp
