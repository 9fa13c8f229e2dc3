#include "dtopp/train/manifest.h"

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

constexpr std::string_view kFormat = "dtopp checkpoint 1";
constexpr uint64_t kMaxManifestBytes = uint64_t{1} << 24;
constexpr std::string_view kRemedy = "; restore the file or use an earlier checkpoint";

[[noreturn]] void fail(const fs::path& path, const std::string& cause) {
  throw CheckpointError(path.string() + ": " + cause + std::string(kRemedy));
}

// The last two lines: the checksum of the text before them.
std::string closing_of(std::string_view text) {
  return "  \"xxh3_128\": \"" + hash_bytes(std::as_bytes(std::span(text.data(), text.size()))) + "\"\n}\n";
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == name.npos;
}

Manifest parse_files(const json& object, const fs::path& path) {
  if (!object.is_object() || object.value("format", json()) != kFormat)
    fail(path, "not of the format \"" + std::string(kFormat) + "\"");
  const auto files = object.value("files", json());
  if (!files.is_object()) fail(path, "lists no files");
  Manifest manifest;
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

std::string format_manifest(const Manifest& files) {
  std::string text = "{\n  \"format\": " + json(kFormat).dump() + ",\n  \"files\": {";
  std::string_view separator = "\n";
  for (const auto& [name, entry] : files) {
    text += separator;
    text += "    " + json(name).dump() + ": {\"size\": " + std::to_string(entry.size) + ", \"xxh3_128\": \"" +
            entry.xxh3_128 + "\"}";
    separator = ",\n";
  }
  text += "\n  },\n";
  return text + closing_of(text);
}

Manifest read_manifest(const fs::path& directory) {
  const auto path = directory / "manifest.json";
  std::string text;
  try {
    text = read_file(path, kMaxManifestBytes);
  } catch (const DataError& error) {
    throw CheckpointError(error.what());
  }
  const size_t closing = closing_of("").size();
  if (text.size() < closing) fail(path, "truncated");
  const auto body = std::string_view(text).substr(0, text.size() - closing);
  if (text.substr(body.size()) != closing_of(body)) fail(path, "damaged: its own checksum does not match");
  return parse_files(json::parse(text, nullptr, /*allow_exceptions=*/false), path);
}

void verify_sizes(const fs::path& directory, const Manifest& files) {
  for (const auto& [name, entry] : files) {
    std::error_code error;
    const auto size = fs::file_size(directory / name, error);
    if (error) fail(directory / name, error.message());
    if (size != entry.size)
      fail(directory / name, "damaged: has " + std::to_string(size) + " bytes, " +
                                 std::to_string(entry.size) + " were written");
  }
}

void verify_content(const fs::path& directory, const Manifest& files) {
  verify_sizes(directory, files);
  for (const auto& [name, entry] : files) {
    std::string hash;
    try {
      hash = hash_file(directory / name);
    } catch (const DataError& error) {
      throw CheckpointError(error.what());
    }
    if (hash != entry.xxh3_128) fail(directory / name, "damaged: its checksum does not match the manifest");
  }
}

}  // namespace dtopp
