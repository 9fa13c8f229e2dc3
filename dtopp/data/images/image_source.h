// Reads pictures and latents from sources: folders, tar files and array files.
#pragma once

#include <set>

#include "dtopp/base/safetensors.h"
#include "dtopp/data/files/resumable_folder.h"

namespace dtopp::data {

// A member of a sample: its bytes, or the path of the file that holds them.
struct RawMember {
  std::string bytes;
  fs::path path;

  // Returns the bytes. Throws DataError if the file cannot be read, is not a regular file or is larger than
  // kMaxMemberBytes; the message holds only the cause.
  std::string load() &&;
  // Returns the bytes of the member and of the picture that it declares. Reads only the beginning of a file;
  // if that does not tell the size, the picture counts as the largest. Returns 0 for a file that cannot be
  // read, which load() reports.
  uint64_t decoded_bytes() const;
};

// The largest size of a member of an archive or of a file.
inline constexpr uint64_t kMaxMemberBytes = uint64_t{1} << 28;

struct RawSample {
  std::string name;   // for messages
  std::string cause;  // if not empty, the reason why the sample is unusable
  // The members of a sample in an archive or a folder.
  std::optional<RawMember> picture;  // JPEG, PNG or WebP
  std::optional<RawMember> array;    // .npy: the caption's embeddings of `picture`, or a latent or pixels
  std::optional<RawMember> number;   // .cls: the class as a number
  std::optional<RawMember> json;     // .json: the class under "label"
  std::string folder;                // name of the folder that holds the sample
  // A sample in an array file: views of `rows`.
  std::optional<TensorView> image, flipped, text;
  std::unique_ptr<std::byte[]> rows;
  uint64_t row_bytes = 0;
  int64_t label = -1;
};

// The role of a file in a sample, determined by its last ending.
enum class MemberRole { kPicture, kUnknownPicture, kArray, kNumber, kJson, kOther };
MemberRole role_of(std::string_view name);

// Returns a member's name without its last ending. The members of one sample have the same key.
std::string_view key_of(std::string_view name);

// Returns the name of the folder that directly contains a member; empty at the top.
std::string folder_of(std::string_view name);

// Returns why a name from an archive or a folder is not safe to use; empty if it is.
std::string name_fault(std::string_view name);

// Returns the name for a one-line message: valid UTF-8, at most 200 bytes and "...", control characters as
// '?'.
std::string printable(std::string_view name);

class ImageSource {
 public:
  virtual ~ImageSource() = default;
  // Returns the next sample in the source's order; nullopt after the last one. Without `load`, pictures and
  // arrays lack their bytes; .cls and .json members always have them. Throws DataError, naming file and byte,
  // if the source itself is damaged.
  virtual std::optional<RawSample> next(bool load) = 0;
};

// Opens a folder, a .tar, .tar.gz, .tgz or .tar.zst file, or a .safetensors or .npy file. Throws DataError if
// the path does not exist or is damaged, and UsageError if the file has another ending.
std::unique_ptr<ImageSource> open_images(const fs::path& path);

// Returns the identity of a source. Reads a whole file, but only the list of files of a
// folder.
InputSource describe_source(const fs::path& path);

struct ImageScan {
  uint64_t samples = 0;
  std::set<std::string> folders;  // names of the folders that hold samples
  bool has_numbers = false;       // classes are given as numbers
};

// Scans all samples without decoding any.
ImageScan scan_images(const fs::path& path);

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
  ImageBatches(std::vector<fs::path> sources, size_t source, uint64_t sample);
  // Returns the next batch; nullopt after the last source. Throws DataError if a source is damaged or has
  // changed since this object was constructed.
  std::optional<ImageBatch> next();

 private:
  std::vector<fs::path> paths_;
  std::vector<fs::file_time_type> changed_;  // time of the last change per source
  size_t next_;                              // index of the current source
  uint64_t skip_;                            // samples to skip when it is opened
  std::unique_ptr<ImageSource> source_;
};

// Opens a .safetensors or .npy file (array_source.cpp).
std::unique_ptr<ImageSource> open_image_array(const fs::path& path);

// Returns the array in `file`, the bytes of a whole .npy file: float32, float16 or uint8. `what` names the
// file in errors. Throws DataError if the array has another type, is in Fortran order, or if its bytes do not
// match its shape.
TensorView read_npy_array(std::span<const std::byte> file, const std::string& what);

}  // namespace dtopp::data
