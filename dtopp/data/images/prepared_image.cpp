#include "dtopp/data/images/prepared_image.h"

#include <algorithm>
#include <span>
#include <utility>

#include "dtopp/base/errors.h"
#include "dtopp/data/files/resumable_folder.h"
#include "dtopp/data/images/array_source.h"
#include "dtopp/data/images/decode_picture.h"
#include "dtopp/data/images/picture.h"
#include "dtopp/data/images/resize.h"

namespace dtopp::data {
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

std::string describe(const ImageShape& shape) {
  return std::to_string(shape.channels) + " x " + std::to_string(shape.height) + " x " +
         std::to_string(shape.width);
}

std::string one_kind(bool has, const std::string& what) {
  return (has ? "has a " : "has no ") + what + ", unlike the first sample";
}

void require_scale(const ImageJob& job, const PreparedImage& image) {
  for (const std::vector<double>* numbers : {&job.scale, &job.shift}) {
    if (numbers->empty()) continue;
    if (image.kind != ImageKind::kLatents)
      throw UsageError(image.name + ": is a picture; --scale and --shift are for latents");
    if (numbers->size() != 1 && numbers->size() != static_cast<size_t>(image.shape.channels))
      throw UsageError("--scale and --shift: one number, or one for each of the " +
                       std::to_string(image.shape.channels) + " channels");
  }
}

std::string shape_disagreement(const ImageFacts& facts, const PreparedImage& image) {
  const bool latent = image.kind == ImageKind::kLatents;
  if (latent != (facts.kind == ImageKind::kLatents))
    return std::string("is a ") + (latent ? "latent" : "picture") + ", unlike the first sample";
  if (image.shape != facts.shape)
    return "is " + describe(image.shape) + ", but the first sample is " + describe(facts.shape) +
           (latent ? "" : " (--size N brings pictures to one size)");
  if (latent && image.latent_type != facts.latent_type)
    return "is " + name_of(image.latent_type) + ", but the first sample is " + name_of(facts.latent_type);
  return "";
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

PreparedBatch BatchPreparer::operator()(ImageBatch batch, int /*worker*/) const {
  PreparedBatch prepared;
  prepared.ends_source = batch.ends_source;
  for (RawSample& sample : batch.samples)
    prepared.images.push_back(with_file_at_work(std::string(sample.name),
                                                [&] { return prepare_image(std::move(sample), job, plan); }));
  return prepared;
}

std::string disagreement(const ImageFacts& facts, const ClassPlan& plan, const PreparedImage& image) {
  const bool labelled = image.label >= 0;
  if (!plan.by_number && labelled != !plan.labels.empty()) return "lies in no folder, unlike other samples";
  if (facts.images == 0) {
    require_scale(facts.job, image);
    return "";
  }
  if (std::string fault = shape_disagreement(facts, image); !fault.empty()) return fault;
  if (image.flipped.empty() == facts.has_flipped) return one_kind(!facts.has_flipped, "flipped latent");
  if (labelled != !facts.classes.empty())
    return one_kind(labelled, "class") + " (.cls, or \"label\" in .json)";
  if ((image.text_size > 0) != (facts.text_size > 0))
    return one_kind(image.text_size > 0, "text of embeddings (.npy)");
  if (image.text_size != facts.text_size || (image.text_size > 0 && image.text_type != facts.text_type))
    return "has text of " + name_of(image.text_type) + " x " + std::to_string(image.text_size) +
           ", but the first sample has " + name_of(facts.text_type) + " x " + std::to_string(facts.text_size);
  return "";
}

void agree(ImageFacts& facts, const ClassPlan& plan, const PreparedImage& image) {
  if (facts.images == 0) {
    facts.kind = image.kind;
    facts.shape = image.shape;
    facts.latent_type = image.latent_type;
    facts.has_flipped = !image.flipped.empty();
    facts.text_size = image.text_size;
    facts.text_type = image.text_type;
    for (const auto& [folder, unused] : plan.labels) facts.classes.push_back(folder);  // in order of labels
  }
  while (plan.by_number && image.label >= static_cast<int64_t>(facts.classes.size()))
    facts.classes.push_back(std::to_string(facts.classes.size()));
  facts.text_length = std::max(facts.text_length, image.text_length);
}

}  // namespace dtopp::data
