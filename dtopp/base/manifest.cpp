#include "dtopp/base/manifest.h"

#include <fstream>

#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"

namespace dtopp {
namespace {

constexpr uint64_t kMaxManifestBytes = uint64_t{1} << 24;

[[noreturn]] void fail(const fs::path& path, const std::string& cause) { throw DataError(path, ": ", cause); }

// The last two lines, which hold the checksum of the text before them.
std::string closing_of(std::string_view text) { return "  \"xxh3_128\": \"" + hash_bytes(text) + "\"\n}\n"; }

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == name.npos;
}

ManifestFiles parse_files(const JsonFields& files, const fs::path& path) {
  ManifestFiles manifest;
  for (const std::string& name : files.keys()) {
    if (!is_plain_name(name)) fail(path, "a malformed entry for \"" + name + "\"");
    const JsonFields entry = files.object(name);
    manifest[name] = {entry.count("size"), entry.text("xxh3_128")};
  }
  return manifest;
}

// The first two lines of every manifest of this format.
std::string opening_of(const std::string& format) { return "{\n  \"format\": " + quote_json(format) + ",\n"; }

}  // namespace

std::string hash_of(const ManifestFiles& files) {
  std::string text;
  for (const auto& [name, entry] : files) text += name + " " + entry.xxh3_128 + "\n";
  return hash_bytes(text);
}

std::string format_manifest(const Manifest& manifest) {
  std::string text = opening_of(manifest.format);
  if (!manifest.about.empty()) text += "  \"about\": " + manifest.about + ",\n";
  text += "  \"files\": {";
  std::string_view separator = "\n";
  for (const auto& [name, entry] : manifest.files) {
    text += separator;
    text += "    " + quote_json(name) + ": {\"size\": " + std::to_string(entry.size) + ", \"xxh3_128\": \"" +
            entry.xxh3_128 + "\"}";
    separator = ",\n";
  }
  text += "\n  },\n";
  return text + closing_of(text);
}

Manifest parse_manifest(const std::string& text, const fs::path& path, const std::string& format) {
  const size_t closing = closing_of("").size();
  if (text.size() < closing) fail(path, "truncated, or not written by dtopp");
  const auto body = std::string_view(text).substr(0, text.size() - closing);
  if (text.substr(body.size()) != closing_of(body))
    fail(path, "its own checksum does not match: damaged, or not written by dtopp");
  const JsonFields object(text, path.string());
  if (object.text("format") != format) fail(path, "not of the format \"" + format + "\"");
  return {format, object.has("about") ? object.object("about").dump() : "",
          parse_files(object.object("files"), path)};
}

Manifest read_manifest(const fs::path& directory, const std::string& format, const std::string& name) {
  const auto path = directory / name;
  return parse_manifest(read_file(path, kMaxManifestBytes), path, format);
}

bool begins_as_manifest(const fs::path& path, const std::string& format) {
  std::error_code unreadable;
  if (!fs::is_regular_file(path, unreadable)) return false;  // opening a pipe would block
  const std::string opening = opening_of(format);
  std::string begin(opening.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<size_t>(file.gcount()));
  return file.is_open() && !file.bad() && opening.starts_with(begin);
}

void verify_sizes(const fs::path& directory, const ManifestFiles& files) {
  for (const auto& [name, entry] : files) {
    std::error_code error;
    const auto size = fs::file_size(directory / name, error);
    if (error) throw file_error("read its size", directory / name, error.value());
    if (size != entry.size)
      fail(directory / name, "damaged: has " + std::to_string(size) + " bytes, " +
                                 std::to_string(entry.size) + " were written");
  }
}

void verify_content(const fs::path& directory, const ManifestFiles& files) {
  verify_sizes(directory, files);
  for (const auto& [name, entry] : files)
    if (hash_file(directory / name) != entry.xxh3_128)
      fail(directory / name, "damaged: its checksum does not match the manifest");
}

}  // namespace dtopp
