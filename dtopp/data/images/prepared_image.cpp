#include <cmath>
#include <cstring>

#include <immintrin.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"
#include "dtopp/data/files/resumable_folder.h"
#include "dtopp/data/images/image_source.h"
#include "dtopp/data/images/picture.h"
#include "dtopp/data/images/prepare_images.h"

namespace dtopp::data {
namespace {

constexpr int32_t kHalf = 1 << (kWeightBits - 1);

void sum_rows(const uint8_t* rows, size_t stride, std::span<const int32_t> weights, uint8_t* out,
              size_t count) {
  std::array<int32_t, 32> sums;
  for (size_t begin = 0; begin < count; begin += sums.size()) {
    const size_t size = std::min(sums.size(), count - begin);
    const uint8_t* row = rows + begin;
    sums.fill(kHalf);
    for (const int32_t weight : weights) {
      for (size_t i = 0; i < size; ++i) sums[i] += weight * row[i];
      row += stride;
    }
    for (size_t i = 0; i < size; ++i)
      out[begin + i] = static_cast<uint8_t>(std::clamp(sums[i] >> kWeightBits, 0, 255));
  }
}

void average_rows(const uint8_t* rows, size_t stride, uint8_t* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>((rows[i] + rows[stride + i] + 1) >> 1);
}

#if defined(__x86_64__)
// Keeps 32 sums in registers. The last 32 outputs may overlap the 32 before. Precondition: `count` is 32 or
// more.
[[gnu::target("avx2")]] void sum_rows_avx2(const uint8_t* rows, size_t stride,
                                           std::span<const int32_t> weights, uint8_t* out, size_t count) {
  for (size_t next = 0; next < count; next += 32) {
    const size_t begin = std::min(next, count - 32);
    const uint8_t* row = rows + begin;
    __m256i sums[4];
    for (__m256i& sum : sums) sum = _mm256_set1_epi32(kHalf);
    for (const int32_t number : weights) {
      const __m256i weight = _mm256_set1_epi32(number);
      for (int i = 0; i < 4; ++i) {
        const __m256i levels = _mm256_cvtepu8_epi32(_mm_loadu_si64(row + 8 * i));
        sums[i] = _mm256_add_epi32(sums[i], _mm256_mullo_epi32(weight, levels));
      }
      row += stride;
    }
    for (__m256i& sum : sums) sum = _mm256_srai_epi32(sum, kWeightBits);
    // Packing clips to eight bits and interleaves groups of four numbers. The permutation restores the order.
    const __m256i packed =
        _mm256_packus_epi16(_mm256_packs_epi32(sums[0], sums[1]), _mm256_packs_epi32(sums[2], sums[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + begin), _mm256_permutevar8x32_epi32(packed, order));
  }
}
#endif

using Bytes16 [[gnu::vector_size(16)]] = uint8_t;

// Interleave the bytes of the first (mix_low) or second (mix_high) halves of a and b.
Bytes16 mix_low(Bytes16 a, Bytes16 b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
Bytes16 mix_high(Bytes16 a, Bytes16 b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

// Transposes by four perfect shuffles of the 256 bytes.
void transpose_16x16(const uint8_t* in, size_t in_stride, uint8_t* out, size_t out_stride) {
  std::array<Bytes16, 16> rows, mixed;
  for (size_t i = 0; i < 16; ++i) std::memcpy(&rows[i], in + i * in_stride, 16);
  for (int round = 0; round < 4; ++round) {
    for (size_t i = 0; i < 8; ++i) {
      mixed[2 * i] = mix_low(rows[i], rows[i + 8]);
      mixed[2 * i + 1] = mix_high(rows[i], rows[i + 8]);
    }
    rows = mixed;
  }
  for (size_t i = 0; i < 16; ++i) std::memcpy(out + i * out_stride, &rows[i], 16);
}

constexpr int kRowsAtOnce = 32;  // rows per transposed block

double box(double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }

// Keys' kernel with a = -1/2.
double bicubic(double x) {
  constexpr double kA = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * kA;
  return 0.0;
}

int32_t to_fixed(double weight) {
  return static_cast<int32_t>((weight < 0 ? -0.5 : 0.5) + weight * (1 << kWeightBits));
}

// The weights of input pixels in each output pixel, along one axis.
class Taps {
 public:
  // Computes the weights of the outputs [begin, begin + count) when `in` pixels become `out`.
  Taps(int in, int out, ResizeFilter filter, int begin, int count)
      : filter_(filter), scale_(static_cast<double>(in) / out) {
    starts_.push_back(0);
    for (int i = begin; i < begin + count; ++i) add((i + 0.5) * scale_, in);
  }

  size_t size() const { return firsts_.size(); }
  // Output i is the sum of weights(i)[t] times input pixel first(i) + t.
  size_t first(size_t i) const { return static_cast<size_t>(firsts_[i]); }
  std::span<const int32_t> weights(size_t i) const {
    return std::span(weights_).subspan(starts_[i], starts_[i + 1] - starts_[i]);
  }
  // The range of input pixels that any output needs.
  size_t begin() const { return first(0); }
  size_t end() const { return first(size() - 1) + weights(size() - 1).size(); }

 private:
  void add(double center, int in) {
    const double stretch = std::max(scale_, 1.0);
    const double support = (filter_ == ResizeFilter::kBox ? 0.5 : 2.0) * stretch;
    int first = std::max(static_cast<int>(center - support + 0.5), 0);
    int end = std::min(static_cast<int>(center + support + 0.5), in);
    const auto weight_at = [&](int x) {
      const double at = (x - center + 0.5) * (1.0 / stretch);
      return filter_ == ResizeFilter::kBox ? box(at) : bicubic(at);
    };
    while (weight_at(first) == 0) ++first;
    while (weight_at(end - 1) == 0) --end;
    double sum = 0;
    exact_.clear();
    for (int x = first; x < end; ++x) sum += exact_.emplace_back(weight_at(x));
    for (const double weight : exact_) weights_.push_back(to_fixed(weight / sum));
    firsts_.push_back(first);
    starts_.push_back(weights_.size());
  }

  ResizeFilter filter_;
  double scale_;
  std::vector<int> firsts_;
  std::vector<size_t> starts_;  // beginning of each output's weights, then the end of the last one's
  std::vector<int32_t> weights_;
  std::vector<double> exact_;
};

// Resizes the rows of `in` from `first_row` on to all rows of `out`, 32 at a time. A block of rows is
// transposed first, so that one weight multiplies many adjacent numbers, as it does when columns are resized.
void resize_rows(const Picture& in, int first_row, const Taps& taps, Picture& out) {
  const auto channels = static_cast<size_t>(in.channels);
  const size_t pixel = channels * kRowsAtOnce, width = (taps.end() - taps.begin()) * channels;
  Pixels block(width * kRowsAtOnce), result(out.row_bytes() * kRowsAtOnce);
  for (int begin = 0; begin < out.height; begin += kRowsAtOnce) {
    const auto rows = static_cast<size_t>(std::min(kRowsAtOnce, out.height - begin));
    transpose(in.row(first_row + begin) + taps.begin() * channels, in.row_bytes(), rows, width, block.data(),
              kRowsAtOnce);
    for (size_t i = 0; i < taps.size(); ++i)
      sum_weighted_rows(block.data() + (taps.first(i) - taps.begin()) * pixel, pixel, taps.weights(i),
                        result.data() + i * pixel, pixel);
    transpose(result.data(), kRowsAtOnce, out.row_bytes(), rows, out.row(begin), out.row_bytes());
  }
}

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
  const auto type = enum_named<FloatType>(array.dtype);
  if (!type) throw DataError(what, " is ", describe(array), ", not F32, F16 or BF16");
  if (!all_finite(*type, array.bytes)) throw DataError(what, " holds a number that is not finite");
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
    throw DataError("is ", describe(array), ", not U8 [", job.channels, ", height, width]");
  if (array.shape[1] > static_cast<int64_t>(kMaxSide) || array.shape[2] > static_cast<int64_t>(kMaxSide) ||
      array.bytes.size() > 3 * kMaxPixels)
    throw DataError("is ", describe(array), ", too large");
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
    throw DataError("is ", describe(array), ", not a latent [channels, height, width]");
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
    throw DataError("its text is ", describe(array), ", not [tokens, size]");
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
      throw UsageError(image.name, ": is a picture; --scale and --shift are for latents");
    if (numbers->size() != 1 && numbers->size() != static_cast<size_t>(image.shape.channels))
      throw UsageError("--scale and --shift: one number, or one for each of the ", image.shape.channels,
                       " channels");
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
    return "is " + enum_name(image.latent_type) + ", but the first sample is " + enum_name(facts.latent_type);
  return "";
}

}  // namespace

void sum_weighted_rows(const uint8_t* rows, size_t stride, std::span<const int32_t> weights, uint8_t* out,
                       size_t count) {
  if (weights.size() == 2 && weights[0] == kHalf && weights[1] == kHalf)
    return average_rows(rows, stride, out, count);
#if defined(__x86_64__)
  if (count >= 32 && __builtin_cpu_supports("avx2")) return sum_rows_avx2(rows, stride, weights, out, count);
#endif
  sum_rows(rows, stride, weights, out, count);
}

void transpose(const uint8_t* in, size_t in_stride, size_t rows, size_t columns, uint8_t* out,
               size_t out_stride) {
  if (rows < 16 || columns < 16) {
    for (size_t y = 0; y < rows; ++y)
      for (size_t x = 0; x < columns; ++x) out[x * out_stride + y] = in[y * in_stride + x];
    return;
  }
  // The last block in each direction begins 16 before the end and overlaps the block before it.
  for (size_t next_y = 0; next_y < rows; next_y += 16) {
    const size_t y = std::min(next_y, rows - 16);
    for (size_t next_x = 0; next_x < columns; next_x += 16) {
      const size_t x = std::min(next_x, columns - 16);
      transpose_16x16(in + y * in_stride + x, in_stride, out + x * out_stride + y, out_stride);
    }
  }
}

Picture resize(const Picture& picture, int height, int width, ResizeFilter filter, ResizeWindow window) {
  // If a side keeps its length, the box filter has one tap of weight 1 per pixel, which changes nothing.
  const auto filter_of = [&](int in, int out) { return in == out ? ResizeFilter::kBox : filter; };
  const Taps down(picture.height, height, filter_of(picture.height, height), window.top, window.rows);
  const Taps across(picture.width, width, filter_of(picture.width, width), window.left, window.columns);
  // Skip the rows that no output needs.
  const auto first = static_cast<int>(down.begin()), rows = static_cast<int>(down.end()) - first;
  Picture narrow(rows, window.columns, picture.channels);
  resize_rows(picture, first, across, narrow);
  Picture out(window.rows, window.columns, picture.channels);
  for (int y = 0; y < out.height; ++y) {
    const auto i = static_cast<size_t>(y);
    sum_weighted_rows(narrow.row(static_cast<int>(down.first(i)) - first), narrow.row_bytes(),
                      down.weights(i), out.row(y), out.row_bytes());
  }
  return out;
}

Picture crop_to_square(Picture picture, int size) {
  while (std::min(picture.height, picture.width) >= 2 * size) {
    const int height = picture.height / 2, width = picture.width / 2;
    picture = resize(picture, height, width, ResizeFilter::kBox, {0, height, 0, width});
  }
  if (picture.height == size && picture.width == size) return picture;
  const double scale = static_cast<double>(size) / std::min(picture.height, picture.width);
  const auto scaled = [&](int side) { return static_cast<int>(std::nearbyint(side * scale)); };
  const int height = scaled(picture.height), width = scaled(picture.width);
  return resize(picture, height, width, ResizeFilter::kBicubic,
                {(height - size) / 2, size, (width - size) / 2, size});
}

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
  const bool labeled = image.label >= 0;
  if (!plan.by_number && labeled != !plan.labels.empty()) return "lies in no folder, unlike other samples";
  if (facts.images == 0) {
    require_scale(facts.job, image);
    return "";
  }
  if (std::string fault = shape_disagreement(facts, image); !fault.empty()) return fault;
  if (image.flipped.empty() == facts.has_flipped) return one_kind(!facts.has_flipped, "flipped latent");
  if (labeled != !facts.classes.empty()) return one_kind(labeled, "class") + " (.cls, or \"label\" in .json)";
  if ((image.text_size > 0) != (facts.text_size > 0))
    return one_kind(image.text_size > 0, "text of embeddings (.npy)");
  if (image.text_size != facts.text_size || (image.text_size > 0 && image.text_type != facts.text_type))
    return "has text of " + enum_name(image.text_type) + " x " + std::to_string(image.text_size) +
           ", but the first sample has " + enum_name(facts.text_type) + " x " +
           std::to_string(facts.text_size);
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
  while (plan.by_number && image.label >= std::ssize(facts.classes))
    facts.classes.push_back(std::to_string(facts.classes.size()));
  facts.text_length = std::max(facts.text_length, image.text_length);
}

}  // namespace dtopp::data
