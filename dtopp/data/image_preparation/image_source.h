// Reads pictures and latents from sources: folders, tar files and array files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dtopp/data/files/resumable_folder.h"
#include "dtopp/data/image_preparation/raw_sample.h"

namespace dtopp::data {

class ImageSource {
 public:
  virtual ~ImageSource() = default;
  // Returns the next sample in the source's order; nullopt after the last one. Without `load`, pictures and
  // arrays lack their bytes; .cls and .json members always have them. Throws DataError, naming file and byte,
  // if the source itself is damaged.
  virtual std::optional<RawSample> next(bool load) = 0;
};

// Groups the members of an archive or a folder into samples.
//
// As in WebDataset, adjacent members form one sample if their names differ only in the last ending:
// dog/0001.jpg, dog/0001.cls, dog/0001.npy.
class SampleGroups : public ImageSource {
 public:
  std::optional<RawSample> next(bool load) final;

 protected:
  struct Named {
    std::string name;
    std::string cause;  // if not empty, the reason why the member is unusable
  };
  // Returns the next member; nullopt after the last one.
  virtual std::optional<Named> next_member() = 0;
  // Returns the content of the member that next_member() returned last.
  virtual RawMember content(bool load) = 0;
  // Returns the member's name for messages.
  virtual std::string location_of(const std::string& name) const = 0;

 private:
  void add(RawSample& sample, const Named& member, MemberRole role, bool load);

  std::optional<Named> pending_;  // the member that begins the next sample
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

// Consecutive samples of one source.
struct ImageBatch {
  std::vector<RawSample> samples;
  uint64_t bytes = 0;  // of the samples and of their decoded pictures
  bool ends_source = false;
};

// Reads the samples of a list of sources in batches.
class ImageBatches {
 public:
  // Begins at sample `sample` of source `source`.
  ImageBatches(std::vector<std::filesystem::path> sources, size_t source, uint64_t sample);
  // Returns the next batch; nullopt after the last source. Throws DataError if a source is damaged or has
  // changed since this object was constructed.
  std::optional<ImageBatch> next();

 private:
  void open();
  void require_unchanged() const;

  std::vector<std::filesystem::path> paths_;
  std::vector<std::filesystem::file_time_type> changed_;  // time of the last change per source
  size_t next_;                                           // index of the current source
  uint64_t skip_;                                         // samples to skip when it is opened
  std::unique_ptr<ImageSource> source_;
};

// Each opens or describes one kind of source.
std::unique_ptr<ImageSource> open_image_folder(const std::filesystem::path& path);
InputSource describe_image_folder(const std::filesystem::path& path);
std::unique_ptr<ImageSource> open_image_tar(const std::filesystem::path& path);
std::unique_ptr<ImageSource> open_image_array(const std::filesystem::path& path);

}  // namespace dtopp::data
