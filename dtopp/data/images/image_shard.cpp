#include "dtopp/data/images/image_shard.h"

#include <algorithm>

#include "dtopp/base/errors.h"
#include "dtopp/data/image_codec/decode_picture.h"

namespace dtopp::data {
ImageShard::ImageShard(const std::filesystem::path& path, const ImageFacts& facts)
    : facts_(facts), path_(path), file_(path) {
  const std::vector<int64_t> shape = {facts.shape.channels, facts.shape.height, facts.shape.width};
  switch (facts.kind) {
    case ImageKind::kPixels:
      samples_ = of_samples("images", "U8", shape);
      break;
    case ImageKind::kEncoded:
      samples_ = &tensor("bytes", "U8");
      offsets_ = offsets_of("offsets");
      break;
    case ImageKind::kLatents:
      samples_ = of_samples("latents", name_of(facts.latent_type), shape);
      if (facts.has_flipped) flipped_ = of_samples("latents_flip", name_of(facts.latent_type), shape);
  }
  if (!facts.classes.empty()) labels_ = of_samples("labels", "I64", {});
  if (facts.text_size == 0) return;
  text_ = &tensor("text", name_of(facts.text_type));
  if (text_->shape.size() != 2 || text_->shape[1] != facts.text_size)
    fail("text must be [tokens, " + std::to_string(facts.text_size) + "]");
  text_offsets_ = offsets_of("text_offsets");
}

const TensorPlace& ImageShard::tensor(const std::string& name, const std::string& dtype) const {
  const TensorPlace* found = file_.find(name);
  if (!found) fail("lacks the tensor \"" + name + "\"");
  if (found->dtype != dtype) fail(name + " is " + found->dtype + ", not " + dtype);
  return *found;
}

void ImageShard::count(uint64_t images) {
  if (is_counted_ && images != images_)
    fail("its tensors hold " + std::to_string(images_) + " and " + std::to_string(images) + " samples");
  images_ = images;
  is_counted_ = true;
}

const TensorPlace* ImageShard::of_samples(const std::string& name, const std::string& dtype,
                                          const std::vector<int64_t>& rest) {
  const TensorPlace& found = tensor(name, dtype);
  if (found.shape.size() != rest.size() + 1 || !std::equal(rest.begin(), rest.end(), found.shape.begin() + 1))
    fail(name + " has another shape than in the manifest");
  count(static_cast<uint64_t>(found.shape[0]));
  return &found;
}

const TensorPlace* ImageShard::offsets_of(const std::string& name) {
  const TensorPlace& found = tensor(name, "I64");
  if (found.shape.size() != 1 || found.shape[0] < 1) fail(name + " must be [samples + 1]");
  count(static_cast<uint64_t>(found.shape[0]) - 1);
  return &found;
}

int64_t ImageShard::integer(const TensorPlace& integers, uint64_t index) const {
  int64_t value = 0;
  file_.read(integers, index * sizeof(value), std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

std::vector<std::byte> ImageShard::read(const TensorPlace& tensor, uint64_t offset, uint64_t size) const {
  std::vector<std::byte> bytes(size);
  file_.read(tensor, offset, bytes);
  return bytes;
}

std::vector<std::byte> ImageShard::piece(const TensorPlace& rows, const TensorPlace& offsets, uint64_t size,
                                         uint64_t index) const {
  const int64_t begin = integer(offsets, index), end = integer(offsets, index + 1);
  if (begin < 0 || end < begin || static_cast<uint64_t>(end) > rows.size / size)
    fail(index, "its offsets lie outside the data");
  return read(rows, static_cast<uint64_t>(begin) * size, static_cast<uint64_t>(end - begin) * size);
}

int64_t ImageShard::label(uint64_t index) const {
  if (facts_.classes.empty()) return -1;
  const int64_t label = integer(*labels_, index);
  if (label < 0 || label >= static_cast<int64_t>(facts_.classes.size()))
    fail(index, "label " + std::to_string(label) + " is none of the " +
                    std::to_string(facts_.classes.size()) + " classes");
  return label;
}

void ImageShard::pixels(uint64_t index, std::span<uint8_t> out) const {
  if (facts_.kind == ImageKind::kPixels) {
    file_.read(*samples_, index * out.size(), std::as_writable_bytes(out));
    return;
  }
  const std::vector<std::byte> file = piece(*samples_, *offsets_, 1, index);
  const ImageShape& shape = facts_.shape;
  try {
    const Picture picture = decode_picture(file, static_cast<int>(shape.channels)).picture;
    if (ImageShape{picture.channels, picture.height, picture.width} != shape)
      throw DataError("has another size than in the manifest");
    to_planes(picture, out);
  } catch (const DataError& error) {
    fail(index, error.what());
  }
}

void ImageShard::latent(uint64_t index, bool flipped, std::span<float> out) const {
  const uint64_t size = out.size() * size_of(facts_.latent_type);
  widen(facts_.latent_type, read(flipped ? *flipped_ : *samples_, index * size, size), out);
}

int64_t ImageShard::text(uint64_t index, std::span<float> out) const {
  if (facts_.text_size == 0) return 0;
  const uint64_t row = static_cast<uint64_t>(facts_.text_size) * size_of(facts_.text_type);
  const std::vector<std::byte> bytes = piece(*text_, *text_offsets_, row, index);
  const auto length = static_cast<int64_t>(bytes.size() / row);
  if (length > facts_.text_length) fail(index, "its text is longer than the manifest allows");
  widen(facts_.text_type, bytes, out.first(static_cast<size_t>(length * facts_.text_size)));
  return length;
}

void ImageShard::fail(const std::string& cause) const { throw DataError(path_.string() + ": " + cause); }

void ImageShard::fail(uint64_t index, const std::string& cause) const {
  fail("sample " + std::to_string(index) + ": " + cause);
}

}  // namespace dtopp::data
