// A sample as it lies in a source: named members that nobody has decoded yet.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "dtopp/base/safetensors.h"

namespace dtopp {

// The bytes of a member, or the file that holds them.
struct RawMember {
  std::string bytes;
  std::filesystem::path path;

  // DataError with the cause alone for a file that cannot be read, is none, or is larger than
  // kMaxMemberBytes.
  std::string load() &&;
};

// A member of an archive, or a file, is refused from here on.
inline constexpr uint64_t kMaxMemberBytes = uint64_t{1} << 28;

struct RawSample {
  std::string name;   // for messages
  std::string cause;  // not empty: why it cannot be used
  // Of an archive or a folder.
  std::optional<RawMember> picture;  // JPEG, PNG or WebP
  std::optional<RawMember> array;    // .npy: beside a picture its caption's embeddings, else a latent
  std::optional<RawMember> number;   // .cls: the class as a number
  std::optional<RawMember> json;     // .json: the class under "label"
  std::string folder;                // that it lies in
  // Of arrays of samples; views of a file that its source keeps open.
  std::optional<TensorView> image, flipped, text;
  int64_t label = -1;
};

// Which of a sample's members a file is, by its last ending.
enum class MemberRole { kPicture, kUnknownPicture, kArray, kNumber, kJson, kOther };
MemberRole role_of(std::string_view name);

// A member's name without its last ending: what the members of one sample have in common.
std::string_view key_of(std::string_view name);

// The folder that a name says a member lies in, without those above it; empty at the top.
std::string folder_of(std::string_view name);

// Why a name from an archive or a folder is not to be trusted; empty when it is fine.
std::string name_fault(std::string_view name);

// As it may stand in a one-line message, however long or odd it is.
std::string printable(std::string_view name);

}  // namespace dtopp
