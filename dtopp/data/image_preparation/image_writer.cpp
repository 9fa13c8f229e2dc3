#include "dtopp/data/image_preparation/image_writer.h"

#include <array>
#include <system_error>
#include <utility>

#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/safetensors/safetensors_writer.h"

namespace dtopp::data {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kHeadBytes = uint64_t{1} << 12;  // reserved in front of a shard's first tensor

std::string shard_name(size_t number) { return format("images-%05zu.safetensors", number); }

bool is_offsets(const std::string& name) { return name.ends_with("offsets"); }

}  // namespace

ImageWriter::ImageWriter(fs::path folder, const ImageFacts& facts, const ManifestFiles& start,
                         uint64_t shard_bytes)
    : folder_(std::move(folder)), shard_bytes_(shard_bytes) {
  const std::vector<int64_t> shape = {facts.shape.channels, facts.shape.height, facts.shape.width};
  if (facts.kind == ImageKind::kPixels) add_stream("images", "U8", shape, 1);
  if (facts.kind == ImageKind::kEncoded) {
    add_stream("bytes", "U8", {}, 1);
    add_stream("offsets", "I64", {}, sizeof(int64_t));
  }
  if (facts.kind == ImageKind::kLatents) {
    const std::string type = name_of(facts.latent_type);
    add_stream("latents", type, shape, size_of(facts.latent_type));
    if (facts.has_flipped) add_stream("latents_flip", type, shape, size_of(facts.latent_type));
  }
  if (!facts.classes.empty()) add_stream("labels", "I64", {}, sizeof(int64_t));
  if (facts.text_size > 0) {
    add_stream("text", name_of(facts.text_type), {facts.text_size}, size_of(facts.text_type));
    add_stream("text_offsets", "I64", {}, sizeof(int64_t));
  }
  for (const auto& [name, entry] : start) {
    if (!name.starts_with(kStreamPrefix)) shards_[name] = entry;
  }
  verify_sizes(folder_, shards_);
  take_back_unrecorded();
  open_streams(start);
}

fs::path ImageWriter::stream_path(const std::string& name) const { return folder_ / (kStreamPrefix + name); }

void ImageWriter::add_stream(const std::string& name, const std::string& dtype, std::vector<int64_t> rest,
                             uint64_t element_bytes) {
  uint64_t row = element_bytes;
  for (const int64_t side : rest) row *= static_cast<uint64_t>(side);
  streams_.push_back({name, dtype, std::move(rest), row, nullptr});
}

// If the next shard was finished but not recorded, renames it back to the first stream. Opening the stream
// then truncates it to its recorded size. Removes the shards after it, which a folder that starts again has.
void ImageWriter::take_back_unrecorded() {
  size_t number = shards_.size() + 1;
  const fs::path path = folder_ / shard_name(number);
  if (!is_there(path)) return;
  rename_durably(path, stream_path(streams_.front().name));
  std::error_code gone;
  while (fs::remove(folder_ / shard_name(++number), gone)) {
  }
}

void ImageWriter::open_streams(const ManifestFiles& start) {
  images_ = 0;
  text_tokens_ = 0;
  for (Stream& stream : streams_) {
    const auto found = start.find(kStreamPrefix + stream.name);
    const ManifestEntry entry = found == start.end() ? ManifestEntry{} : found->second;
    stream.file.reset();
    stream.file = std::make_unique<AppendFile>(stream_path(stream.name), entry.size, entry.xxh3_128,
                                               &stream == &streams_.front() ? kHeadBytes : 0);
    if (is_offsets(stream.name) && entry.size == 0) put_number(stream.name, 0);
    const uint64_t rows = stream.file->size() / stream.row_bytes;
    if (stream.name == "text") text_tokens_ = static_cast<int64_t>(rows);
    if (stream.name == "images" || stream.name == "latents") images_ = rows;
    if (stream.name == "offsets") images_ = rows - 1;
  }
}

void ImageWriter::put(const std::string& name, std::span<const std::byte> bytes) {
  for (Stream& stream : streams_) {
    if (stream.name == name) stream.file->write(bytes);
  }
}

void ImageWriter::put_number(const std::string& name, int64_t value) {
  put(name, std::as_bytes(std::span(&value, 1)));
}

bool ImageWriter::has_room_for(const PreparedImage& image) const {
  // Three integers (the label and two offsets) are added to the sample's own bytes.
  uint64_t bytes = kHeadBytes + image.bytes() + 3 * sizeof(int64_t);
  for (const Stream& stream : streams_) bytes += stream.file->size();
  return images_ == 0 || bytes <= shard_bytes_;
}

void ImageWriter::append(const PreparedImage& image) {
  const auto bytes_of = [](const std::string& text) { return std::as_bytes(std::span(text)); };
  put(image.kind == ImageKind::kPixels    ? "images"
      : image.kind == ImageKind::kEncoded ? "bytes"
                                          : "latents",
      bytes_of(image.data));
  for (const Stream& stream : streams_) {
    if (stream.name == "bytes") put_number("offsets", static_cast<int64_t>(stream.file->size()));
  }
  put("latents_flip", bytes_of(image.flipped));
  put_number("labels", image.label);
  put("text", bytes_of(image.text));
  text_tokens_ += image.text_length;
  put_number("text_offsets", text_tokens_);
  ++images_;
}

ManifestFiles ImageWriter::sync() {
  ManifestFiles files = shards_;
  for (Stream& stream : streams_) {
    stream.file->sync();
    files[kStreamPrefix + stream.name] = {stream.file->size(), stream.file->hash()};
  }
  return files;
}

// Appends the other streams to the first one. Returns the tensors in the order of their bytes in that file.
std::vector<TensorSource> ImageWriter::append_others() {
  std::vector<TensorSource> tensors;
  AppendFile& first = *streams_.front().file;
  for (Stream& stream : streams_) {
    const uint64_t size = stream.file->size();
    std::vector<int64_t> shape = stream.rest;
    shape.insert(shape.begin(), static_cast<int64_t>(size / stream.row_bytes));
    tensors.emplace_back(stream.name, stream.dtype, std::move(shape), size, TensorSource::Read());
    if (stream.file.get() == &first) continue;
    stream.file->flush();
    first.write(MappedFile(stream.file->path()).bytes());
  }
  return tensors;
}

ManifestFiles ImageWriter::finish_shard() {
  const std::string name = shard_name(shards_.size() + 1);
  const fs::path path = folder_ / name;
  AppendFile& file = *streams_.front().file;
  const std::string head = safetensors_head(path, append_others(), kHeadBytes);
  file.write_head(std::as_bytes(std::span(head)));
  file.sync();
  rename_durably(file.path(), path);
  shards_[name] = {kHeadBytes + file.size(), hash_file(path)};
  return shards_;
}

void ImageWriter::begin_shard() { open_streams({}); }

}  // namespace dtopp::data
