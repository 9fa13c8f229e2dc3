// Converts pictures or latents to one folder of prepared images: safetensors files and manifest.json.
//
// Samples keep the order of the sources. The bytes of the output depend only on the sources and the options
// below, not on the number of workers or on interruptions. progress.json records the progress, and a restart
// resumes from the last record.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "dtopp/data/image_preparation/image_writer.h"
#include "dtopp/data/images/image_facts.h"

namespace dtopp {

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
  uint64_t samples = 0;  // finished samples, skipped ones included
  uint64_t samples_total = 0;
};

struct PrepareImagesObserver {
  std::function<void(const PrepareImagesProgress&)> progress = [](const PrepareImagesProgress&) {};
  std::function<void(const SkippedImage&)> skipped = [](const SkippedImage&) {};
  std::function<bool()> stop_requested = [] { return false; };
};

struct PrepareImagesResult {
  bool was_complete = false;  // the folder was complete already; nothing was done
  uint64_t resumed_samples = 0;
  ImageFacts facts;
};

inline constexpr uint64_t kMostBad = 10'000;
inline constexpr int64_t kLargestSize = 4096;

// Prepares the images, or resumes an interrupted preparation.
//
// Throws: DataError if a source is missing or damaged, if more than max_bad samples are unusable, or if the
//         output cannot be written;
//         UsageError if an option is out of range, if the output folder holds other files, or if another
//         process writes it;
//         Stopped, after recording the progress, if observer.stop_requested() returns true
PrepareImagesResult prepare_images(const PrepareImagesOptions& options,
                                   const PrepareImagesObserver& observer = {});

}  // namespace dtopp
