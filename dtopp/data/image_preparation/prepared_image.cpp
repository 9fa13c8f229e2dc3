#include "dtopp/data/image_preparation/prepared_image.h"

#include <algorithm>
#include <span>
#include <utility>

#include "dtopp/base/errors.h"
#include "dtopp/data/image_codec/decode_picture.h"
#include "dtopp/data/image_codec/encode_png.h"
#include "dtopp/data/image_codec/resize.h"
#include "dtopp/data/image_preparation/array_source.h"
#include "dtopp/data/image_preparation/image_source.h"

namespace dtopp {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string describe(const TensorView& array) {
  std::string text = array.dtype + " [";
  for (size_t i = 0; i < array.shape.size(); ++i) text += (i ? ", " : "") + std::to_string(array.shape[i]);
  return text + "]";
}

FloatType checked_floats(const TensorView& array, const char* what) {
  const auto type = float_type_of(array.dtype);
  if (!type) throw DataError(std::string(what) + " is " + describe(array) + ", not F32, F16 or BF16");
  if (!all_finite(*type, array.bytes))
    throw DataError(std::string(what) + " holds a number that is not finite");
  return *type;
}

// Stores a small picture as pixels and a large one as a file. If `file` is not empty, it already encodes this
// picture and becomes that file; otherwise the picture is encoded as PNG.
void store(PreparedImage& image, const Picture& picture, std::string file) {
  image.shape = {picture.channels, picture.height, picture.width};
  if (std::max(picture.height, picture.width) <= kLargestStoredRaw) {
    image.kind = ImageKind::kPixels;
    image.data.resize(picture.pixels.size());
    to_planes(picture, {reinterpret_cast<uint8_t*>(image.data.data()), image.data.size()});
  } else {
    image.kind = ImageKind::kEncoded;
    image.data = file.empty() ? encode_png(picture) : std::move(file);
  }
}

bool is_wanted_size(const Picture& picture, const ImageJob& job) {
  return job.size == 0 || (picture.height == job.size && picture.width == job.size);
}

void set_picture(PreparedImage& image, std::string file, const ImageJob& job) {
  DecodedPicture decoded = decode_picture(bytes_of(file), static_cast<int>(job.channels));
  const bool keep =
      is_wanted_size(decoded.picture, job) && !decoded.was_turned && decoded.format != PictureFormat::kWebp;
  if (!keep) file.clear();
  if (job.size > 0) decoded.picture = crop_to_square(std::move(decoded.picture), static_cast<int>(job.size));
  store(image, decoded.picture, std::move(file));
}

void set_pixels(PreparedImage& image, const TensorView& array, const ImageJob& job) {
  if (array.shape.size() != 3 || array.shape[0] != job.channels || array.shape[1] < 1 || array.shape[2] < 1)
    throw DataError("is " + describe(array) + ", not U8 [" + std::to_string(job.channels) +
                    ", height, width]");
  if (array.shape[1] > static_cast<int64_t>(kMaxSide) || array.shape[2] > static_cast<int64_t>(kMaxSide) ||
      array.bytes.size() > 3 * kMaxPixels)
    throw DataError("is " + describe(array) + ", too large");
  Picture picture = from_planes(array.bytes, static_cast<int>(array.shape[1]),
                                static_cast<int>(array.shape[2]), static_cast<int>(job.channels));
  if (job.size > 0) picture = crop_to_square(std::move(picture), static_cast<int>(job.size));
  store(image, picture, "");
}

void set_latent(PreparedImage& image, TensorView array, const ImageJob& job) {
  if (array.shape.size() == 4 && array.shape[0] == 1) array.shape.erase(array.shape.begin());
  if (array.shape.size() != 3 || std::ranges::any_of(array.shape, [](int64_t side) {
        return side < 1 || side > static_cast<int64_t>(kMaxSide);
      }))
    throw DataError("is " + describe(array) + ", not a latent [channels, height, width]");
  if (job.size > 0) throw DataError("is a latent: --size is for pictures");
  image.kind = ImageKind::kLatents;
  image.shape = {array.shape[0], array.shape[1], array.shape[2]};
  image.latent_type = checked_floats(array, "the latent");
  image.data = text_of(array.bytes);
}

void set_array(PreparedImage& image, const TensorView& array, const ImageJob& job) {
  if (array.dtype == "U8") return set_pixels(image, array, job);
  set_latent(image, array, job);
}

void set_text(PreparedImage& image, const TensorView& array) {
  if (array.shape.empty() || array.shape.size() > 2 || array.shape.back() < 1)
    throw DataError("its text is " + describe(array) + ", not [tokens, size]");
  image.text_type = checked_floats(array, "its text");
  image.text_size = array.shape.back();
  image.text_length = array.shape.size() == 2 ? array.shape[0] : 1;
  image.text = text_of(array.bytes);
}

void set_label(PreparedImage& image, RawSample& sample, const ClassPlan& plan) {
  if (!plan.by_number) {
    const auto found = plan.labels.find(sample.folder);
    if (found != plan.labels.end()) image.label = found->second;
  } else if (sample.number) {
    image.label = parse_class_number(std::move(*sample.number).load());
  } else if (sample.json) {
    image.label = parse_json_label(std::move(*sample.json).load());
  } else {
    image.label = sample.label;
  }
}

void set_members(PreparedImage& image, RawSample& sample, const ImageJob& job) {
  const std::string array = sample.array ? std::move(*sample.array).load() : "";
  if (sample.picture) {
    set_picture(image, std::move(*sample.picture).load(), job);
    if (sample.array) set_text(image, read_npy_array(bytes_of(array), "its .npy"));
  } else {
    set_array(image, read_npy_array(bytes_of(array), "the .npy"), job);
  }
}

void set_rows(PreparedImage& image, const RawSample& sample, const ImageJob& job) {
  set_array(image, *sample.image, job);
  if (sample.flipped) {
    checked_floats(*sample.flipped, "the flipped latent");
    image.flipped = text_of(sample.flipped->bytes);
  }
  if (sample.text) set_text(image, *sample.text);
}

}  // namespace

PreparedImage prepare_image(RawSample sample, const ImageJob& job, const ClassPlan& plan) {
  PreparedImage image;
  image.name = std::move(sample.name);
  image.cause = std::move(sample.cause);
  if (!image.cause.empty()) return image;
  try {
    set_label(image, sample, plan);
    if (sample.image)
      set_rows(image, sample, job);
    else
      set_members(image, sample, job);
  } catch (const DataError& error) {
    image.cause = printable(error.what());
  }
  return image;
}

}  // namespace dtopp
