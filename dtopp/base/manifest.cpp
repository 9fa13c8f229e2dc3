#include "dtopp/base/manifest.h"

#include <span>
#include <string_view>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kMaxManifestBytes = uint64_t{1} << 24;

[[noreturn]] void fail(const fs::path& path, const std::string& cause) {
  throw DataError(path.string() + ": " + cause);
}

// The last two lines: the checksum of the text before them.
std::string closing_of(std::string_view text) {
  return "  \"xxh3_128\": \"" + hash_bytes(std::as_bytes(std::span(text.data(), text.size()))) + "\"\n}\n";
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == name.npos;
}

ManifestFiles parse_files(const json& object, const fs::path& path) {
  const auto files = object.value("files", json());
  if (!files.is_object()) fail(path, "lists no files");
  ManifestFiles manifest;
  for (const auto& [name, entry] : files.items()) {
    const auto size = entry.is_object() ? entry.value("size", json()) : json();
    const auto hash = entry.is_object() ? entry.value("xxh3_128", json()) : json();
    if (!is_plain_name(name) || !size.is_number_unsigned() || !hash.is_string())
      fail(path, "a malformed entry for \"" + name + "\"");
    manifest[name] = {size.get<uint64_t>(), hash.get<std::string>()};
  }
  return manifest;
}

}  // namespace

std::string format_manifest(const Manifest& manifest) {
  std::string text = "{\n  \"format\": " + json(manifest.format).dump() + ",\n";
  if (!manifest.about.empty()) text += "  \"about\": " + manifest.about.dump() + ",\n";
  text += "  \"files\": {";
  std::string_view separator = "\n";
  for (const auto& [name, entry] : manifest.files) {
    text += separator;
    text += "    " + json(name).dump() + ": {\"size\": " + std::to_string(entry.size) + ", \"xxh3_128\": \"" +
            entry.xxh3_128 + "\"}";
    separator = ",\n";
  }
  text += "\n  },\n";
  return text + closing_of(text);
}

Manifest read_manifest(const fs::path& directory, const std::string& format, const std::string& name) {
  const auto path = directory / name;
  const std::string text = read_file(path, kMaxManifestBytes);
  const size_t closing = closing_of("").size();
  if (text.size() < closing) fail(path, "truncated");
  const auto body = std::string_view(text).substr(0, text.size() - closing);
  if (text.substr(body.size()) != closing_of(body)) fail(path, "damaged: its own checksum does not match");
  const auto object = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object() || object.value("format", nlohmann::ordered_json()) != format)
    fail(path, "not of the format \"" + format + "\"");
  Manifest manifest{format, nlohmann::ordered_json::object(), parse_files(json(object), path)};
  if (const auto about = object.find("about"); about != object.end()) manifest.about = *about;
  return manifest;
}

void verify_sizes(const fs::path& directory, const ManifestFiles& files) {
  for (const auto& [name, entry] : files) {
    std::error_code error;
    const auto size = fs::file_size(directory / name, error);
    if (error) fail(directory / name, error.message());
    if (size != entry.size)
      fail(directory / name, "damaged: has " + std::to_string(size) + " bytes, " +
                                 std::to_string(entry.size) + " were written");
  }
}

void verify_content(const fs::path& directory, const ManifestFiles& files) {
  verify_sizes(directory, files);
  for (const auto& [name, entry] : files) {
    if (hash_file(directory / name) != entry.xxh3_128)
      fail(directory / name, "damaged: its checksum does not match the manifest");
  }
}

}  // namespace dtopp
