// Describes a sample of a source before decoding: its members and their names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "dtopp/base/safetensors/safetensors_file.h"

namespace dtopp::data {

// A member of a sample: its bytes, or the path of the file that holds them.
struct RawMember {
  std::string bytes;
  std::filesystem::path path;

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

}  // namespace dtopp::data
