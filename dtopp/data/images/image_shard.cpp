#include "dtopp/data/images/image_shard.h"

#include <cstring>
#include <stdexcept>

#include "dtopp/base/errors.h"
#include "dtopp/data/image_codec/decode_picture.h"

namespace dtopp::data {
namespace {

int64_t integer_at(std::span<const std::byte> integers, uint64_t index) {
  int64_t value = 0;
  std::memcpy(&value, integers.data() + index * sizeof(value), sizeof(value));
  return value;
}

}  // namespace

ImageShard::ImageShard(const std::filesystem::path& path, const ImageFacts& facts)
    : facts_(facts), path_(path), file_(path) {
  const std::vector<int64_t> shape = {facts.shape.channels, facts.shape.height, facts.shape.width};
  switch (facts.kind) {
    case ImageKind::kPixels:
      samples_ = of_samples("images", "U8", shape);
      break;
    case ImageKind::kEncoded:
      samples_ = tensor("bytes", "U8").bytes;
      offsets_ = offsets_of("offsets");
      break;
    case ImageKind::kLatents:
      samples_ = of_samples("latents", name_of(facts.latent_type), shape);
      if (facts.has_flipped) flipped_ = of_samples("latents_flip", name_of(facts.latent_type), shape);
  }
  if (!facts.classes.empty()) labels_ = of_samples("labels", "I64", {});
  if (facts.text_size == 0) return;
  const TensorView& text = tensor("text", name_of(facts.text_type));
  if (text.shape.size() != 2 || text.shape[1] != facts.text_size)
    fail("text must be [tokens, " + std::to_string(facts.text_size) + "]");
  text_ = text.bytes;
  text_offsets_ = offsets_of("text_offsets");
}

const TensorView& ImageShard::tensor(const std::string& name, const std::string& dtype) const {
  const TensorView* found = file_.find(name);
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

ImageShard::Bytes ImageShard::of_samples(const std::string& name, const std::string& dtype,
                                         const std::vector<int64_t>& rest) {
  const TensorView& view = tensor(name, dtype);
  if (view.shape.size() != rest.size() + 1 || !std::equal(rest.begin(), rest.end(), view.shape.begin() + 1))
    fail(name + " has another shape than in the manifest");
  count(static_cast<uint64_t>(view.shape[0]));
  return view.bytes;
}

ImageShard::Bytes ImageShard::offsets_of(const std::string& name) {
  const TensorView& view = tensor(name, "I64");
  if (view.shape.size() != 1 || view.shape[0] < 1) fail(name + " must be [samples + 1]");
  count(static_cast<uint64_t>(view.shape[0]) - 1);
  return view.bytes;
}

ImageShard::Bytes ImageShard::piece(Bytes rows, Bytes offsets, uint64_t size, uint64_t index) const {
  const int64_t begin = integer_at(offsets, index), end = integer_at(offsets, index + 1);
  if (begin < 0 || end < begin || static_cast<uint64_t>(end) > rows.size() / size)
    fail(index, "its offsets lie outside the data");
  return rows.subspan(static_cast<uint64_t>(begin) * size, static_cast<uint64_t>(end - begin) * size);
}

int64_t ImageShard::label(uint64_t index) const {
  if (facts_.classes.empty()) return -1;
  const int64_t label = integer_at(labels_, index);
  if (label < 0 || label >= static_cast<int64_t>(facts_.classes.size()))
    fail(index, "label " + std::to_string(label) + " is none of the " +
                    std::to_string(facts_.classes.size()) + " classes");
  return label;
}

void ImageShard::pixels(uint64_t index, std::span<uint8_t> out) const {
  if (facts_.kind == ImageKind::kPixels) {
    std::memcpy(out.data(), samples_.data() + index * out.size(), out.size());
    return;
  }
  const ImageShape& shape = facts_.shape;
  try {
    const Picture picture =
        decode_picture(piece(samples_, offsets_, 1, index), static_cast<int>(shape.channels)).picture;
    if (ImageShape{picture.channels, picture.height, picture.width} != shape)
      throw DataError("has another size than in the manifest");
    to_planes(picture, out);
  } catch (const DataError& error) {
    fail(index, error.what());
  }
}

void ImageShard::latent(uint64_t index, bool flipped, std::span<float> out) const {
  const uint64_t size = out.size() * size_of(facts_.latent_type);
  widen(facts_.latent_type, (flipped ? flipped_ : samples_).subspan(index * size, size), out);
}

int64_t ImageShard::text(uint64_t index, std::span<float> out) const {
  if (facts_.text_size == 0) return 0;
  const uint64_t row = static_cast<uint64_t>(facts_.text_size) * size_of(facts_.text_type);
  const Bytes bytes = piece(text_, text_offsets_, row, index);
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
