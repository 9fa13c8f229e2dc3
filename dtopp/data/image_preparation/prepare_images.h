// Converts pictures or latents to one folder of prepared images: safetensors files and manifest.json.
//
// Samples keep the order of the sources. The bytes of the output depend only on the sources and the options
// below, not on the number of workers or on interruptions. progress.json records the progress, and a restart
// resumes from the last record.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/data/files/ordered_workers.h"
#include "dtopp/data/files/resumable_folder.h"
#include "dtopp/data/image_preparation/image_writer.h"
#include "dtopp/data/image_preparation/prepared_image.h"
#include "dtopp/data/images/image_facts.h"

namespace dtopp::data {

struct PrepareImagesOptions {
  std::vector<std::filesystem::path> sources;  // read in this order
  std::filesystem::path output;
  int64_t size = 0;                  // pictures are resized to size x size; 0: all must have the same size
  int64_t channels = 3;              // channels of pictures: 1 or 3
  std::vector<double> scale, shift;  // of latents: one number, or one per channel; empty: 1 and 0
  uint64_t max_bad = 0;              // number of unusable samples that may be skipped
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

  // Adds or skips the next sample. Returns false if the folder is complete.
  bool next();
  const PrepareImagesProgress& progress() const { return progress_; }
  // The facts about the samples so far. The skipped samples are listed in order.
  const ImageFacts& facts() const { return facts_; }
  // Records the progress and throws Stopped. Precondition: the folder is not complete.
  [[noreturn]] void stop();

 private:
  void add(const PreparedImage& image);
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
  std::optional<ImageWriter> writer_;
  std::optional<OrderedWorkers<ImageBatches, BatchPreparer>> workers_;  // none: the folder is complete
  PreparedBatch batch_;
  size_t next_in_batch_ = 0;
  std::chrono::steady_clock::time_point next_record_;
};

}  // namespace dtopp::data
