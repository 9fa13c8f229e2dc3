#include "dtopp/data/image_preparation/image_source.h"

#include <cerrno>
#include <charconv>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"
#include "dtopp/base/path_kind.h"
#include "dtopp/base/stop_scope.h"
#include "dtopp/data/files/file_at_work.h"
#include "dtopp/data/text/unicode.h"

namespace dtopp::data {
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

bool is_complete(const RawSample& sample) { return sample.picture || sample.array || !sample.cause.empty(); }

bool is_picture(MemberRole role) {
  return role == MemberRole::kPicture || role == MemberRole::kUnknownPicture;
}

// Limits of a batch: a batch ends when it reaches one of them.
constexpr uint64_t kImageBatchBytes = uint64_t{1} << 18;
constexpr uint64_t kImageBatchDecodedBytes = uint64_t{1} << 24;
constexpr size_t kImageBatchSamples = 64;
constexpr size_t kImageBatchFiles = 8;  // files that the worker reads itself

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
    end_if_stopped();
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
  const nlohmann::json value = parse_json(text, "its .json");
  if (!value.is_object()) throw DataError("its .json is not a JSON object");
  const auto label = value.find("label");
  if (label == value.end() || !label->is_number_integer()) return -1;
  return checked_class(label->get<int64_t>());
}

std::optional<RawSample> SampleGroups::next(bool load) {
  RawSample sample;
  std::string key;
  bool has_picture = false;  // two pictures are two samples, even with the same key
  for (;;) {
    if (!pending_) pending_ = next_member();
    if (!pending_) return is_complete(sample) ? std::optional(std::move(sample)) : std::nullopt;
    const MemberRole role = role_of(pending_->name);
    if (role != MemberRole::kOther) {
      if (key_of(pending_->name) != key || (has_picture && is_picture(role))) {
        if (is_complete(sample)) return sample;
        sample = {};
        has_picture = false;
        key = key_of(pending_->name);
      }
      has_picture |= is_picture(role);
      add(sample, *pending_, role, load);
    }
    pending_.reset();
  }
}

void SampleGroups::add(RawSample& sample, const Named& member, MemberRole role, bool load) {
  if (sample.name.empty() || is_picture(role)) sample.name = location_of(member.name);
  if (!member.cause.empty()) {
    sample.cause = member.cause;
    return;
  }
  sample.folder = folder_of(member.name);
  switch (role) {
    case MemberRole::kPicture:
      sample.picture = content(load);
      break;
    case MemberRole::kArray:
      sample.array = content(load);
      break;
    case MemberRole::kNumber:
      sample.number = content(/*load=*/true);
      break;
    case MemberRole::kJson:
      sample.json = content(/*load=*/true);
      break;
    default:
      sample.cause = "has an unsupported format; convert it to JPEG, PNG or WebP";
  }
}

ImageBatches::ImageBatches(std::vector<fs::path> sources, size_t source, uint64_t sample)
    : paths_(std::move(sources)), next_(source), skip_(sample) {
  for (const auto& path : paths_) changed_.push_back(fs::last_write_time(path));
}

void ImageBatches::open() {
  source_ = open_images(paths_[next_]);
  for (; skip_ > 0; --skip_) source_->next(/*load=*/false);
}

std::optional<ImageBatch> ImageBatches::next() {
  if (next_ == paths_.size()) return std::nullopt;
  if (!source_) open();
  ImageBatch batch;
  size_t files = 0;
  uint64_t bytes = 0;
  while (bytes < kImageBatchBytes && batch.bytes < kImageBatchDecodedBytes && files < kImageBatchFiles &&
         batch.samples.size() < kImageBatchSamples) {
    auto sample = with_file_at_work(paths_[next_].string(), [this] { return source_->next(/*load=*/true); });
    if (!sample) {
      require_unchanged();
      batch.ends_source = true;
      source_.reset();
      ++next_;
      break;
    }
    bytes += sample->row_bytes;
    batch.bytes += sample->row_bytes;
    for (const auto* member : {&sample->picture, &sample->array, &sample->number, &sample->json})
      if (*member) bytes += (*member)->bytes.size();
    for (const auto* member : {&sample->picture, &sample->array})
      if (*member) batch.bytes += (*member)->decoded_bytes();
    files += (sample->picture && !sample->picture->path.empty()) ||
             (sample->array && !sample->array->path.empty());
    batch.samples.push_back(*std::move(sample));
  }
  return batch;
}

void ImageBatches::require_unchanged() const {
  std::error_code gone;  // on an error, the time is one that no file has, so the comparison fails
  if (fs::last_write_time(paths_[next_], gone) != changed_[next_])
    throw DataError(paths_[next_].string() + ": changed while it was being read; run the same command again");
}

}  // namespace dtopp::data
