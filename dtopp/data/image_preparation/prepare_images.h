// Pictures or latents to one folder of prepared images: safetensors files and manifest.json.
//
// Samples keep the order of the sources. The bytes depend on the sources and the options below alone, not on
// the number of workers or on interruptions: progress is recorded (progress.json), and a restart goes on from
// the last record.
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
  int64_t size = 0;                  // pictures become size x size; 0: all must have one size, and keep it
  int64_t channels = 3;              // of pictures: 1 or 3
  std::vector<double> scale, shift;  // of latents: one number, or one a channel; none: 1 and 0
  uint64_t max_bad = 0;              // so many samples that cannot be used are left out
  int num_workers = 1;
  // How much a restart may have to do again, and how large files get.
  std::chrono::milliseconds record_every{5000};
  uint64_t shard_bytes = kMaxShardBytes;
};

struct PrepareImagesProgress {
  uint64_t samples = 0;  // done, those that were left out too
  uint64_t samples_total = 0;
};

struct PrepareImagesObserver {
  std::function<void(const PrepareImagesProgress&)> progress = [](const PrepareImagesProgress&) {};
  std::function<void(const SkippedImage&)> skipped = [](const SkippedImage&) {};
  std::function<bool()> stop_requested = [] { return false; };
};

struct PrepareImagesResult {
  bool was_complete = false;  // nothing to do
  uint64_t resumed_samples = 0;
  ImageFacts facts;
};

inline constexpr uint64_t kMostBad = 10'000;
inline constexpr int64_t kLargestSize = 4096;

// DataError for sources that are missing or damaged, for a sample that cannot be used beyond max_bad, and for
// an output that cannot be written; UsageError for options out of range, when the output folder holds
// anything else or another process is writing it; Stopped after recording the progress.
PrepareImagesResult prepare_images(const PrepareImagesOptions& options,
                                   const PrepareImagesObserver& observer = {});

}  // namespace dtopp
