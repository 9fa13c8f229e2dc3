#include "dtopp/data/image_preparation/prepare_images.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/json.h"
#include "dtopp/data/files/ordered_workers.h"
#include "dtopp/data/image_preparation/image_batches.h"
#include "dtopp/data/image_preparation/image_record.h"
#include "dtopp/data/image_preparation/sample_agreement.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;
using ImageClock = std::chrono::steady_clock;

void require_options(const PrepareImagesOptions& options) {
  if (options.sources.empty()) throw UsageError("no images to prepare");
  if (options.num_workers < 1) throw UsageError("at least one worker is needed");
  if (options.size < 0 || options.size > kLargestSize)
    throw UsageError("--size " + std::to_string(options.size) + ": must be from 1 to " +
                     std::to_string(kLargestSize));
  if (options.channels != 1 && options.channels != 3)
    throw UsageError("--channels " + std::to_string(options.channels) + ": must be 1 (grey) or 3 (RGB)");
  if (options.max_bad > kMostBad)
    throw UsageError("--max-bad " + std::to_string(options.max_bad) + ": must be at most " +
                     std::to_string(kMostBad));
}

ImageJob describe_image_job(const PrepareImagesOptions& options) {
  for (const fs::path& path : options.sources) open_images(path);  // fails early if any cannot be opened
  ImageJob job{options.size, options.channels, options.scale, options.shift, {}};
  for (const fs::path& path : options.sources) job.origins.push_back(describe_origin(path));
  return job;
}

// The contents of all sources, found without decoding a sample.
struct ImagePlan {
  ClassPlan classes;
  std::vector<uint64_t> samples;  // number of samples per source
};

ImagePlan make_plan(const std::vector<fs::path>& sources) {
  ImagePlan plan;
  std::set<std::string> folders;
  for (const fs::path& path : sources) {
    ImageScan scan = scan_images(path);
    if (scan.samples == 0)
      throw DataError(path.string() + ": holds no pictures (JPEG, PNG, WebP) and no latents");
    plan.samples.push_back(scan.samples);
    plan.classes.by_number |= scan.has_numbers;
    folders.merge(scan.folders);
  }
  if (plan.classes.by_number) return plan;
  if (folders.size() > static_cast<size_t>(kMaxClasses))
    throw DataError(sources.front().string() + ": pictures lie in " + std::to_string(folders.size()) +
                    " folders, more than the " + std::to_string(kMaxClasses) + " classes allowed");
  for (const std::string& folder : folders)  // in byte order
    plan.classes.labels.emplace(folder, static_cast<int64_t>(plan.classes.labels.size()));
  return plan;
}

class ImagePreparation {
 public:
  ImagePreparation(const PrepareImagesOptions& options, const PrepareImagesObserver& observer,
                   const ImagePlan& plan, ImageRecord start)
      : options_(options),
        observer_(observer),
        plan_(plan),
        record_(std::move(start)),
        next_record_(ImageClock::now() + options.record_every) {
    for (const uint64_t samples : plan.samples) shown_.samples_total += samples;
    for (size_t i = 0; i < record_.source; ++i) shown_.samples += plan.samples[i];
    shown_.samples += record_.sample;
    if (record_.facts.images > 0)
      writer_.emplace(options.output, record_.facts, record_.files, options.shard_bytes);
  }

  PrepareImagesResult run() {
    const uint64_t resumed = shown_.samples;
    observer_.progress(shown_);
    prepare_all();
    finish();
    return {false, resumed, record_.facts};
  }

 private:
  void prepare_all() {
    ImageBatches batches(options_.sources, record_.source, record_.sample);
    const ImageJob& job = record_.facts.job;
    OrderedWorkers<ImageBatch, PreparedBatch> workers(
        [&] { return batches.next(); },
        [&](ImageBatch batch, int) { return prepare_batch(std::move(batch), job, plan_.classes); },
        options_.num_workers);
    while (const auto batch = workers.next()) {
      for (const PreparedImage& image : batch->images) add(image);
      if (batch->ends_source) {
        ++record_.source;
        record_.sample = 0;
      }
      observer_.progress(shown_);
      if (observer_.stop_requested()) stop();
      if (ImageClock::now() >= next_record_) record();
    }
  }

  void add(const PreparedImage& image) {
    const std::string cause =
        image.cause.empty() ? disagreement(record_.facts, plan_.classes, image) : image.cause;
    if (cause.empty())
      keep(image);
    else
      skip({image.name, cause});
    ++record_.sample;
    ++shown_.samples;
  }

  void keep(const PreparedImage& image) {
    agree(record_.facts, plan_.classes, image);
    if (!writer_) writer_.emplace(options_.output, record_.facts, ManifestFiles(), options_.shard_bytes);
    if (!writer_->has_room_for(image)) {
      finish_shard();
      writer_->begin_shard();
    }
    writer_->append(image);
    ++record_.facts.images;
    ++record_.facts.job.origins[record_.source].images;
  }

  void skip(SkippedImage image) {
    if (record_.facts.skipped.size() >= options_.max_bad) {
      record();  // a run with a larger --max-bad resumes from here
      throw DataError(image.name + ": " + image.cause +
                      (options_.max_bad == 0
                           ? "; repair or remove it, or leave out up to N such samples with --max-bad N"
                           : "; " + std::to_string(options_.max_bad) +
                                 " such samples were left out, the most that --max-bad allows; raise it"));
    }
    observer_.skipped(image);
    record_.facts.skipped.push_back(std::move(image));
  }

  // Syncs the samples first: they must be on the device before the record that counts them.
  void record() {
    if (writer_) record_.files = writer_->sync();
    write_image_record(options_.output, record_);
    next_record_ = ImageClock::now() + options_.record_every;
  }

  void finish_shard() {
    record_.files = writer_->finish_shard();
    write_image_record(options_.output, record_);
  }

  [[noreturn]] void stop() {
    record();
    throw Stopped(options_.output.string() + ": stopped after " + std::to_string(shown_.samples) +
                  " images; run the same command again to resume");
  }

  // Writes the manifest last, because it marks the folder as complete.
  void finish() {
    if (record_.facts.images == 0)
      throw DataError(options_.output.string() + ": all " + std::to_string(shown_.samples) +
                      " samples were left out");
    if (!writer_->is_empty()) finish_shard();
    write_file_atomically(
        options_.output / kManifestName,
        format_manifest({kImageDataFormat, dump_json(to_json(record_.facts)), record_.files}));
  }

  const PrepareImagesOptions& options_;
  const PrepareImagesObserver& observer_;
  const ImagePlan& plan_;
  ImageRecord record_;
  std::optional<ImageWriter> writer_;
  PrepareImagesProgress shown_;
  ImageClock::time_point next_record_;
};

}  // namespace

PrepareImagesResult prepare_images(const PrepareImagesOptions& options,
                                   const PrepareImagesObserver& observer) {
  require_options(options);
  ImageJob job = describe_image_job(options);
  // The first check takes no lock, so that it also accepts a finished folder on a read-only file system.
  auto complete = find_complete_images(options.output, job);
  if (complete && !has_prepare_record(options.output, image_folder_kind())) return {true, 0, *complete};
  const ImagePlan plan = complete ? ImagePlan() : make_plan(options.sources);
  make_directories(options.output);
  const DirectoryLock lock(options.output);
  if (!complete) complete = find_complete_images(options.output, job);
  PrepareImagesResult result{true, 0, complete.value_or(ImageFacts())};
  if (!complete)
    result =
        ImagePreparation(options, observer, plan, begin_image_folder(options.output, std::move(job))).run();
  clear_up_images(options.output);
  return result;
}

}  // namespace dtopp
