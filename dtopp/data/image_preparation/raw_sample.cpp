#include "dtopp/data/image_preparation/raw_sample.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "dtopp/base/descriptor.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/data/image_codec/picture.h"
#include "dtopp/data/image_codec/picture_size.h"
#include "dtopp/data/text/unicode.h"

namespace dtopp::data {
namespace {

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

std::string_view base_name(std::string_view name) { return name.substr(name.rfind('/') + 1); }

// Returns the position of the dot that begins the last ending; the name's size if it has none.
size_t ending_of(std::string_view name) {
  const size_t dot = name.rfind('.');
  const size_t base = name.size() - base_name(name).size();
  return dot == name.npos || dot <= base ? name.size() : dot;
}

}  // namespace

std::string RawMember::load() && {
  if (path.empty()) return std::move(bytes);
  try {
    return read_file(path, kMaxMemberBytes);
  } catch (const DataError& error) {
    const std::string message = error.what(), prefix = path.string() + ": ";
    throw DataError(message.starts_with(prefix) ? message.substr(prefix.size()) : message);
  }
}

uint64_t RawMember::decoded_bytes() const {
  constexpr uint64_t kBeginning = uint64_t{1} << 17;
  const auto add_picture = [](std::span<const std::byte> beginning, uint64_t file_bytes) {
    const uint64_t pixels = declared_pixels(beginning).value_or(kMaxPixels);
    return file_bytes + (pixels <= kMaxPixels ? 3 * pixels : 0);  // more are refused before decoding
  };
  if (path.empty()) return add_picture(std::as_bytes(std::span(bytes)), bytes.size());
  try {
    const Descriptor file = open_regular(path);
    std::vector<std::byte> beginning(std::min(file.size(), kBeginning));
    file.read_at(0, beginning);
    return add_picture(beginning, file.size());
  } catch (const DataError&) {  // NOLINT: load() reports it
    return 0;
  }
}

MemberRole role_of(std::string_view name) {
  if (base_name(name).starts_with('.')) return MemberRole::kOther;
  std::string ending(name.substr(ending_of(name)));
  std::ranges::transform(ending, ending.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  constexpr std::array<std::pair<std::string_view, MemberRole>, 18> kRoles{{
      {".jpg", MemberRole::kPicture},
      {".jpeg", MemberRole::kPicture},
      {".png", MemberRole::kPicture},
      {".webp", MemberRole::kPicture},
      {".npy", MemberRole::kArray},
      {".cls", MemberRole::kNumber},
      {".json", MemberRole::kJson},
      {".gif", MemberRole::kUnknownPicture},
      {".bmp", MemberRole::kUnknownPicture},
      {".tif", MemberRole::kUnknownPicture},
      {".tiff", MemberRole::kUnknownPicture},
      {".avif", MemberRole::kUnknownPicture},
      {".heic", MemberRole::kUnknownPicture},
      {".heif", MemberRole::kUnknownPicture},
      {".jp2", MemberRole::kUnknownPicture},
      {".jxl", MemberRole::kUnknownPicture},
      {".ppm", MemberRole::kUnknownPicture},
      {".jpe", MemberRole::kPicture},
  }};
  for (const auto& [known, role] : kRoles) {
    if (ending == known) return role;
  }
  return MemberRole::kOther;
}

std::string_view key_of(std::string_view name) { return name.substr(0, ending_of(name)); }

std::string folder_of(std::string_view name) {
  if (name.starts_with("./")) name.remove_prefix(2);
  const size_t slash = name.rfind('/');
  if (slash == name.npos) return "";
  return std::string(base_name(name.substr(0, slash)));
}

std::string name_fault(std::string_view name) {
  if (name.empty()) return "has no name";
  if (name.starts_with('/')) return "has an absolute name";
  if (find_invalid_utf8(name)) return "has a name that is not UTF-8";
  if (std::ranges::any_of(name, is_control)) return "has a control character in its name";
  if (name.size() > 4096) return "has a name of " + std::to_string(name.size()) + " bytes";
  for (std::string_view rest = name; !rest.empty();) {
    const size_t slash = std::min(rest.find('/'), rest.size());
    if (rest.substr(0, slash) == "..") return "has a name that leads out of its folder (..)";
    rest.remove_prefix(std::min(slash + 1, rest.size()));
  }
  return "";
}

std::string printable(std::string_view name) {
  constexpr size_t kLongest = 200;
  std::string text = replace_invalid_utf8(name);
  if (text.size() > kLongest) {
    size_t end = kLongest;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
      --end;  // do not cut within a character
    text = text.substr(0, end) + "...";
  }
  std::ranges::replace_if(text, is_control, '?');
  return text;
}

}  // namespace dtopp::data
