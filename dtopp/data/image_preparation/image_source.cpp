#include "dtopp/data/image_preparation/image_source.h"

#include <cerrno>
#include <charconv>
#include <utility>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"
#include "dtopp/base/path_kind.h"
#include "dtopp/data/text/unicode.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;

bool is_array_file(const fs::path& path) {
  return path.extension() == ".safetensors" || path.extension() == ".npy";
}

bool is_tar(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.ends_with(".tar") || name.ends_with(".tar.gz") || name.ends_with(".tgz") ||
         name.ends_with(".tar.zst");
}

int64_t checked_class(int64_t number) {
  if (number < 0 || number >= kMaxClasses)
    throw DataError("class " + std::to_string(number) + " is not from 0 to " +
                    std::to_string(kMaxClasses - 1));
  return number;
}

}  // namespace

std::unique_ptr<ImageSource> open_images(const fs::path& path) {
  const PathKind kind = path_kind(path);
  if (kind == PathKind::kDirectory) return open_image_folder(path);
  if (kind == PathKind::kNothing) throw file_error("open", path, ENOENT);
  if (!is_tar(path) && !is_array_file(path))
    throw UsageError(path.string() + ": neither a folder nor .tar, .tar.gz, .tar.zst, .safetensors or .npy");
  if (kind == PathKind::kOther) throw DataError(path.string() + ": not a regular file");
  return is_tar(path) ? open_image_tar(path) : open_image_array(path);
}

InputSource describe_source(const fs::path& path) {
  const std::string name = without_trailing_slash(fs::absolute(path).lexically_normal()).filename().string();
  if (find_invalid_utf8(name))
    throw UsageError(replace_invalid_utf8(path.string()) +
                     ": its name is not UTF-8, and the output folder records names; rename it");
  InputSource source = path_kind(path) == PathKind::kDirectory
                           ? describe_image_folder(path)
                           : InputSource{"", fs::file_size(path), hash_file(path)};
  source.name = name;
  return source;
}

ImageScan scan_images(const fs::path& path) {
  const auto source = open_images(path);
  ImageScan scan;
  bool judged_json = false;
  while (auto sample = source->next(/*load=*/false)) {
    ++scan.samples;
    if (!sample->cause.empty()) continue;
    if (!sample->folder.empty()) scan.folders.insert(sample->folder);
    scan.has_numbers |= sample->number.has_value() || sample->label >= 0;
    if (scan.has_numbers || !sample->json || std::exchange(judged_json, true)) continue;
    try {
      scan.has_numbers = parse_json_label(std::move(*sample->json).load()) >= 0;
    } catch (const DataError&) {  // reported when the sample is prepared
    }
  }
  return scan;
}

int64_t parse_class_number(const std::string& text) {
  const size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  const size_t end = text.find_last_not_of(" \t\r\n") + 1;
  int64_t number = 0;
  const auto [after, error] = std::from_chars(text.data() + begin, text.data() + end, number);
  if (begin >= end || error != std::errc() || after != text.data() + end)
    throw DataError("its .cls is not a whole number");
  return checked_class(number);
}

int64_t parse_json_label(const std::string& text) {
  const nlohmann::json value = parse_json(text);
  if (!value.is_object()) throw DataError("its .json is not a JSON object");
  const auto label = value.find("label");
  if (label == value.end() || !label->is_number_integer()) return -1;
  return checked_class(label->get<int64_t>());
}

}  // namespace dtopp
