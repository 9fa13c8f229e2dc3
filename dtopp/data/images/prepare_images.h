// Converts pictures or latents to one folder of prepared images: safetensors files and manifest.json.
//
// Samples keep the order of the sources. The bytes of the output depend only on the sources and the options
// below, not on the number of workers or on interruptions. progress.json records the progress, and a restart
// resumes from the last record.
#pragma once

#include <chrono>

#include "dtopp/base/manifest.h"
#include "dtopp/base/safetensors.h"
#include "dtopp/data/files/ordered_workers.h"
#include "dtopp/data/files/resumable_folder.h"
#include "dtopp/data/images/image_data.h"
#include "dtopp/data/images/image_source.h"
#include "dtopp/data/images/picture.h"

namespace dtopp::data {

inline constexpr int kWeightBits = 22;  // fractional bits of a weight

// Computes out[i] = the sum over t of weights[t] * rows[t * stride + i], for 0 <= i < count, rounded and
// clipped to eight bits. Precondition: the magnitudes of the weights sum to less than 2.
void sum_weighted_rows(const uint8_t* rows, size_t stride, std::span<const int32_t> weights, uint8_t* out,
                       size_t count);

// Computes out[x * out_stride + y] = in[y * in_stride + x] for y < rows, x < columns.
void transpose(const uint8_t* in, size_t in_stride, size_t rows, size_t columns, uint8_t* out,
               size_t out_stride);

enum class ResizeFilter { kBox, kBicubic };

// The part [top, top + rows) x [left, left + columns) of a resized picture.
struct ResizeWindow {
  int top = 0, rows = 0, left = 0, columns = 0;
};

// Resizes a picture to [height, width] and returns only the part `window` of the result.
//
// The result equals Pillow's Image.resize bit for bit, if Pillow resizes rows first, as it does up to
// Pillow 12. The filter is separable: rows first, then columns, with rounding to eight bits between them.
// Weights have 22 fractional bits.
Picture resize(const Picture& picture, int height, int width, ResizeFilter filter, ResizeWindow window);

// Returns the middle of the picture as size x size, as ADM does with Pillow (Dhariwal and Nichol 2021,
// center_crop_arr). The picture is halved by a box filter while its shorter
// side is at least 2 * size. A bicubic filter then scales the shorter side to `size`, and the longer one is
// cropped.
Picture crop_to_square(Picture picture, int size);

struct PreparedImage {
  std::string name;
  std::string cause;  // if not empty, the reason why the sample is unusable
  ImageKind kind = ImageKind::kPixels;
  ImageShape shape;
  std::string data;     // pixels [C, H, W], a JPEG or PNG file, or a latent
  std::string flipped;  // the latent of the mirrored picture; empty: none
  FloatType latent_type = FloatType::kF32;
  int64_t label = -1;
  std::string text;  // the caption's embeddings, text_type [text_length, text_size]
  FloatType text_type = FloatType::kF32;
  int64_t text_size = 0;  // 0: no text
  int64_t text_length = 0;

  uint64_t bytes() const { return data.size() + flipped.size() + text.size(); }
};

// The assignment of classes to the samples of all sources.
struct ClassPlan {
  bool by_number = false;                 // true: numbers in .cls, .json or labels; false: folders
  std::map<std::string, int64_t> labels;  // label per folder
};

// Converts a sample to the bytes that are stored. A faulty sample does not throw; it yields a `cause`.
PreparedImage prepare_image(RawSample sample, const ImageJob& job, const ClassPlan& plan);

struct PreparedBatch {
  std::vector<PreparedImage> images;
  bool ends_source = false;
};

struct BatchPreparer {
  const ImageJob& job;
  const ClassPlan& plan;

  PreparedBatch operator()(ImageBatch batch, int worker) const;
};

// Returns why the sample does not agree with the facts.images samples before it; empty if it agrees. The
// first sample determines kind, shape and types of all. Throws UsageError if the job's scale and shift do not
// fit the first sample.
std::string disagreement(const ImageFacts& facts, const ClassPlan& plan, const PreparedImage& image);

// Updates the facts with a sample that agrees. Every sample may add a class and extend the longest text.
void agree(ImageFacts& facts, const ClassPlan& plan, const PreparedImage& image);

// A shard exceeds this size only if it holds a single sample.
inline constexpr uint64_t kMaxShardBytes = uint64_t{1} << 30;

class ImageWriter;

struct PrepareImagesOptions : ImageJob {
  std::vector<fs::path> sources;  // read in this order
  fs::path output;
  uint64_t max_bad = 0;  // number of unusable samples that may be skipped
  int num_workers = 1;
  // Interval between records: a restart repeats at most this much work.
  std::chrono::milliseconds record_every{5000};
  uint64_t shard_bytes = kMaxShardBytes;  // size limit of a shard
};

struct PrepareImagesProgress {
  bool was_complete = false;  // the folder was complete already; nothing was done
  uint64_t resumed_samples = 0;
  std::string restart_reason{};  // ResumableFolder::restart_reason
  uint64_t samples = 0;          // finished samples, skipped ones included
  uint64_t samples_total = 0;
};

inline constexpr uint64_t kMostBad = 10'000;
inline constexpr int64_t kLargestSize = 4096;

// The contents of all sources, found without decoding a sample.
struct ImagePlan {
  ClassPlan classes;
  std::vector<uint64_t> samples;  // number of samples per source
};

// Prepares the images, or resumes an interrupted preparation:
//
//   ImagePreparation preparation(options);
//   while (preparation.next()) show(preparation.progress());
//
// Throws: DataError if a source is missing or damaged, if more than max_bad samples are unusable, or if the
//         output cannot be written;
//         UsageError if an option is out of range, if the output folder holds other files, or if another
//         process writes it
class ImagePreparation {
 public:
  explicit ImagePreparation(PrepareImagesOptions options);
  ~ImagePreparation();

  // Adds or skips the next sample. Returns false if the folder is complete.
  bool next();
  const PrepareImagesProgress& progress() const { return progress_; }
  // The facts about the samples so far. The skipped samples are listed in order.
  const ImageFacts& facts() const { return facts_; }
  // Records the progress and throws Stopped. Precondition: the folder is not complete.
  [[noreturn]] void stop();

 private:
  void keep(const PreparedImage& image);
  void skip(SkippedImage image);
  void record();
  void write_record();
  void finish();

  PrepareImagesOptions options_;
  ImagePlan plan_;
  ResumableFolder folder_;
  ImageFacts facts_;
  size_t source_ = 0;    // source of the next sample; at the end, the number of sources
  uint64_t sample_ = 0;  // index of the next sample in that source
  ManifestFiles files_;  // files written so far
  PrepareImagesProgress progress_;
  std::unique_ptr<ImageWriter> writer_;
  std::optional<OrderedWorkers<ImageBatches, BatchPreparer>> workers_;  // none: the folder is complete
  PreparedBatch batch_;
  size_t next_in_batch_ = 0;
  std::chrono::steady_clock::time_point next_record_;
};

}  // namespace dtopp::data
